"""Where data comes from: files, tables of BigQuery, the Hugging Face hub; and whether it has changed."""
