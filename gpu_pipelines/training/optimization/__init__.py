"""What changes the weights after each step."""
