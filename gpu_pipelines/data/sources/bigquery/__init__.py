"""BigQuery as a source: tables, and what queries give."""
