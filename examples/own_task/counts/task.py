"""counts/task.py: how many events to expect, from numbers in a table (Poisson regression)."""

from pathlib import Path

from gpu_pipelines.tasks.metric import ERROR
from gpu_pipelines.tasks.task import Task


class Counts(Task):
    defaults = {"source": "sample:counts", "model": "linear"}
    parameters = ("label_column",)
    samples = {"counts": "counts.task:write_sample"}
    models = ("linear",)
    metrics = {"deviance": ERROR, "mean_error": ERROR}
    preparation = "counts.parts:Table"
    recipe = "counts.parts:Poisson"
    scoring = "counts.parts:Deviance"
    predictor = "counts.parts:Expected"

    def columns(self, settings):
        return [("x", "y", settings.label_column)]


def write_sample(folder: Path) -> Path:
    rows = [(n % 20 / 20, n // 20 / 20) for n in range(400)]
    lines = [f"{x},{y},{round(8 * x + 3 * y)}" for x, y in rows]
    (folder / "counts.csv").write_text("\n".join(["x,y,label", *lines]))
    return folder / "counts.csv"
