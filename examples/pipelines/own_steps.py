"""Steps of one's own around those of this project: rows are cleaned before, and a summary is written after.

gpu-pipelines run examples/pipelines/own_steps.py
gpu-pipelines run examples/pipelines/own_steps.py --target vertex --accelerator l4:1
"""

from kfp import dsl
from kfp.dsl import Artifact, Input, Markdown, Model, Output

from gpu_pipelines.components import accelerate, evaluate_checkpoints, prepare_data, train_model


@dsl.component(base_image="python:3.11")
def clean_reviews(count: int, reviews: Output[Artifact]) -> int:
    """Writes reviews as JSON lines, without those that say nothing."""
    import json
    from pathlib import Path

    words = {"good": ("fine", "great", "lovely", "neat"), "bad": ("poor", "dull", "awful", "broken")}
    rows = [
        {"text": " ".join(words[label][(number >> k) % 4] for k in range(4)) if number % 9 else " ", "label": label}
        for number in range(count)
        for label in words
    ]
    kept = [row for row in rows if row["text"].strip()]
    Path(reviews.path).write_text("".join(json.dumps(row) + "\n" for row in kept))
    print(f"kept {len(kept)} of {len(rows)} reviews")
    return len(kept)


@dsl.component(base_image="python:3.11")
def summarize(model: Input[Model], passed: bool, kept: int, summary: Output[Markdown]) -> str:
    """Says in a sentence what came of it."""
    from pathlib import Path

    verdict = "good enough" if passed else "not good enough"
    said = f"{model.metadata['checkpoint']} is the best, {verdict}; {kept} reviews"
    Path(summary.path).write_text(f"# Reviews\n\n{said}\n")
    return said


@dsl.pipeline(name="own-steps")
def own_steps(count: int = 200, steps: int = 20) -> str:
    cleaned = clean_reviews(count=count)
    prepared = prepare_data(data=cleaned.outputs["reviews"], task="text_classification", sequence_length=16)
    trained = accelerate(train_model(dataset=prepared.outputs["dataset"], model="bert-micro", max_steps=steps))
    evaluated = evaluate_checkpoints(
        dataset=prepared.outputs["dataset"], checkpoints=trained.outputs["checkpoints"], gates=["accuracy>=0.5"]
    )
    return summarize(
        model=evaluated.outputs["best_checkpoint"],
        passed=evaluated.outputs["passed"],
        kept=cleaned.outputs["Output"],
    ).outputs["Output"]
