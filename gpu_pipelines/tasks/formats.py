"""Formats of data that tasks name when they say what they read."""

#: Formats of tables: rows with columns.
TABLES = ("csv", "jsonl", "parquet", "arrow")
