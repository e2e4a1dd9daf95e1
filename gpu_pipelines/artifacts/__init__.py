"""The formats that pass between steps: dataset, checkpoint, evaluation, exported model. Plain directories all."""
