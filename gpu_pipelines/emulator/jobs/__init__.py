"""Custom jobs and tuning jobs, and the machines that they have."""
