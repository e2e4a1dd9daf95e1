"""A local server that speaks as much of the Kubernetes API as a TrainJob needs, and the official client's types."""
