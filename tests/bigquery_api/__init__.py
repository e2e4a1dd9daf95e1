"""A local server in the place of BigQuery and its Storage Read API."""
