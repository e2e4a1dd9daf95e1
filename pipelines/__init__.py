"""Pipelines: DAGs built from the components through a target."""

# Module of each pipeline, by the name it has on the command line.
PIPELINES = {"train_evaluate_upload": "gpu_pipelines.pipelines.train_evaluate_upload.pipeline"}
