"""The task regression: one or more numbers from images, texts, or the columns of a table."""
