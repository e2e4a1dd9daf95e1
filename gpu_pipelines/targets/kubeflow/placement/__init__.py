"""Where the steps run: what pods and TrainJobs need, as a compiled file has it."""
