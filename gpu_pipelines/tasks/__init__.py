"""Tasks: the recipe of a task knows its model, loss and predictions."""
