"""The step `check_prediction`: whether a model can predict a source, before a machine with a GPU is started for it."""
