"""KFP's local runner: made to behave like the platforms, its log, its cache and its processes."""
