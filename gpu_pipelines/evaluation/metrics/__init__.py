"""What is measured of predictions and losses."""
