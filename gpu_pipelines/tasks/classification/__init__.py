"""What the classification of images and that of texts have in common."""
