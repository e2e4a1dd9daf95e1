"""Custom jobs without a pipeline: from flags or a file, written as gcloud's configuration, sent and followed."""
