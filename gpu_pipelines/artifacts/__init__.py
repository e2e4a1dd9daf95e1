"""The formats that pass between steps, all plain directories: dataset, checkpoint, evaluation, exported model."""
