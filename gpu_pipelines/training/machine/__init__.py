"""What a training knows of the machines it runs on, and what they tell it."""
