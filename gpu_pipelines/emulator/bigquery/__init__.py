"""BigQuery, and its Storage Read API."""
