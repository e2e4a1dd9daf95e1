"""A pipeline of a script alone: Lightning, as it stands, on whatever accelerators are chosen.

pip install lightning
gpu-pipelines run examples/pipelines/lightning_script.py
gpu-pipelines run examples/pipelines/lightning_script.py --target vertex --accelerator l4:4 \
    -p data=gs://bucket/rows -p script=gs://bucket/train.py
"""

from kfp import dsl

from gpu_pipelines.components import accelerate, run_training_script

HERE = "examples/pipelines/lightning"


@dsl.pipeline(name="lightning-script")
def lightning_script(data: str = HERE, script: str = f"{HERE}/train.py", steps: str = "40"):
    # `steps` is a text: within a list of arguments KFP makes 40.0 of a whole number.
    rows = dsl.importer(artifact_uri=data, artifact_class=dsl.Dataset)
    accelerate(run_training_script(dataset=rows.output, script=script, arguments=["--steps", steps]))
