"""What is trained: a recipe knows the model, the loss and the predictions of one task."""
