"""What a project of Google Cloud has beside them: permissions, secrets, logs."""
