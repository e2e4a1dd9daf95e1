"""The common part of the classification of images and of texts."""
