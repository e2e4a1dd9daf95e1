"""The rows of each step: their order, their changes, and the batches made of them."""
