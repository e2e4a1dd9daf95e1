"""Messages about the end of a run: their content, their recipients, and their delivery."""
