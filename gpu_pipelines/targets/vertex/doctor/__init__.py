"""What `doctor` looks at: this machine, the project and its services, permissions, and places to write to."""
