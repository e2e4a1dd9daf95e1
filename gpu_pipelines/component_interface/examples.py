"""A small pipeline for each component that uses it, as in a user's own file."""

from __future__ import annotations

_PREPARED = '    prepared = prepare_data(source=source)\n    dataset = prepared.outputs["dataset"]\n'

#: Imports, and the function's body, which takes `source`.
_PARTS = {
    "prepare_data": (
        ["prepare_data"],
        """    rows = export_rows()
    # Or prepare_data(source=source), for what lies in a place of its own.
    prepare_data(data=rows.outputs["rows"], task="text_classification")
""",
    ),
    "train_model": (
        ["accelerate", "prepare_data", "train_model"],
        f'{_PREPARED}    accelerate(train_model(dataset=dataset, model="vit-base"), "l4:4", strategy="spot")\n',
    ),
    "tune_model": (
        ["accelerate", "evaluate_checkpoints", "prepare_data", "tune_model"],
        f"""{_PREPARED}    space = "learning_rate: {{type: float, low: 5e-4, high: 5e-2, log: true}}"
    tuned = tune_model(dataset=dataset, space=space, trials=12, parallel_trials=4)
    accelerate(tuned, "l4:4", strategy="spot")
    accelerate(evaluate_checkpoints(dataset=dataset, checkpoints=tuned.outputs["checkpoints"]), "l4:1")
""",
    ),
    "run_training_script": (
        ["accelerate", "prepare_data", "run_training_script"],
        f"""{_PREPARED}    trained = run_training_script(dataset=dataset, script="gs://my-bucket/train.py")
    accelerate(trained, "l4:4", strategy="spot")
""",
    ),
    "evaluate_checkpoints": (
        ["accelerate", "evaluate_checkpoints", "prepare_data", "train_model"],
        f"""{_PREPARED}    with dsl.ParallelFor(["convnext-micro", "vit-micro"]) as model:
        trained = accelerate(train_model(dataset=dataset, model=model), "l4:1")
    # Of a single training: checkpoints=trained.outputs["checkpoints"].
    evaluated = evaluate_checkpoints(
        dataset=dataset, collected=dsl.Collected(trained.outputs["checkpoints"]), gates=["accuracy>=0.95"]
    )
    accelerate(evaluated, "l4:1")
""",
    ),
    "upload_model": (
        ["upload_model"],
        """    model = dsl.importer(artifact_uri=source, artifact_class=dsl.Model)
    # Of evaluate_checkpoints: best_checkpoint=….outputs["best_checkpoint"], passed=….outputs["passed"].
    upload_model(best_checkpoint=model.output, registry="vertex://", model_name="bert", serving_image="my/triton:1")
""",
    ),
    "check_for_new_data": (
        ["accelerate", "check_for_new_data", "prepare_data", "train_model"],
        """    watched = check_for_new_data(source=source, registry="vertex://")
    with dsl.If(watched.outputs["Output"] == True):
        prepared = prepare_data(source=source)
        accelerate(train_model(dataset=prepared.outputs["dataset"]), "l4:1")
""",
    ),
    "check_for_drift": (
        ["accelerate", "check_for_drift", "prepare_data", "train_model"],
        """    logged = "bq://my-project.logging.photos"
    watched = check_for_drift(source=logged, registry="vertex://", model_name="photos")
    with dsl.If(watched.outputs["Output"] == True):
        prepared = prepare_data(source=source)
        accelerate(train_model(dataset=prepared.outputs["dataset"]), "l4:1")
""",
    ),
    "predict_batch": (
        ["accelerate", "predict_batch"],
        """    predicted = predict_batch(source=source, registry="vertex://", model_name="photos")
    # Of upload_model: model=….outputs["model"], in place of a name.
    accelerate(predicted, "l4:1")
""",
    ),
    "send_message": (
        ["prepare_data", "send_message"],
        """    told = send_message(notify=["slack:projects/my-project/secrets/slack/versions/latest"], pipeline="mine")
    with dsl.ExitHandler(told):
        prepare_data(source=source)
""",
    ),
    "check_request": (
        ["check_request", "prepare_data"],
        """    checked = check_request(source=source, task="text_classification")
    prepare_data(
        source=source,
        source_fingerprint=checked.outputs["source_fingerprint"],
        advanced=checked.outputs["prepare"],
    )
""",
    ),
}
_STEP_BEFORE = """@dsl.component(base_image="python:3.11")
def export_rows(rows: dsl.Output[dsl.Artifact]):
    with open(rows.path, "w") as file:
        file.write('{"text": "a good film", "label": "good"}\\n')


"""


def example(name: str) -> str:
    """A file with a pipeline that uses the component of that name."""
    imported, body = _PARTS[name]
    place = "bert-onnx" if name == "upload_model" else "photos"
    before = _STEP_BEFORE if "export_rows" in body else ""
    return f"""from kfp import dsl

from gpu_pipelines.components import {", ".join(imported)}


{before}@dsl.pipeline(name="my-pipeline")
def my_pipeline(source: str = "gs://my-bucket/{place}"):
{body}"""
