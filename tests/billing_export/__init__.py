"""A stand-in for BigQuery that holds the rows of billing export."""
