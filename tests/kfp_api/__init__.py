"""A local server that speaks the REST API v2beta1 of Kubeflow Pipelines as far as `kfp.Client` is used."""
