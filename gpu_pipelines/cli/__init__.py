"""The command line `gpu-pipelines`."""
