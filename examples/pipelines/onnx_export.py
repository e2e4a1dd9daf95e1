"""The best model as ONNX, registered beside the original.

gpu-pipelines run examples/pipelines/onnx_export.py
gpu-pipelines run examples/pipelines/onnx_export.py --target vertex --accelerator train-model=l4:1
"""

from kfp import dsl
from kfp.dsl import Input, Model, Output

from gpu_pipelines.components import (
    STEPS_IMAGE,
    accelerate,
    evaluate_checkpoints,
    prepare_data,
    train_model,
    upload_model,
)


@dsl.component(base_image=STEPS_IMAGE, packages_to_install=["onnx>=1.17"], install_kfp_package=False)
def export_to_onnx(model: Input[Model], exported: Output[Model]) -> str:
    """Traces the model in Hugging Face layout; runs in the image of this project's steps, which has torch."""
    import json
    from pathlib import Path

    import torch
    from transformers import AutoModelForImageClassification

    loaded = AutoModelForImageClassification.from_pretrained(model.path, local_files_only=True).eval()
    config = json.loads(Path(model.path, "config.json").read_text())
    size = config.get("image_size", 28)
    example = torch.zeros(1, config.get("num_channels", 3), size, size)
    Path(exported.path).mkdir(parents=True)
    file = Path(exported.path, "model.onnx")
    any_rows = {"pixels": {0: "rows"}, "logits": {0: "rows"}}
    names = {"input_names": ["pixels"], "output_names": ["logits"], "dynamic_axes": any_rows}
    torch.onnx.export(loaded, (example,), str(file), dynamo=False, **names)
    return f"{file.stat().st_size:,} bytes"


@dsl.pipeline(name="onnx-export")
def onnx_export(source: str = "sample:digits", steps: int = 20, model_name: str = "digits-onnx") -> str:
    prepared = prepare_data(source=source)
    trained = accelerate(train_model(dataset=prepared.outputs["dataset"], model="vit-micro", max_steps=steps))
    evaluated = evaluate_checkpoints(
        dataset=prepared.outputs["dataset"], checkpoints=trained.outputs["checkpoints"], gates=["accuracy>=0"]
    )
    exported = export_to_onnx(model=evaluated.outputs["best_checkpoint"])
    upload_model(
        best_checkpoint=exported.outputs["exported"], model_name=model_name, passed=evaluated.outputs["passed"]
    )
    return exported.outputs["Output"]
