"""Training pipelines for Kubeflow and Vertex AI in which the accelerator is a choice.

What the commands do, a program does with `plan`, `run`, `evaluate`, `predict`, `watch`, `export`, `compile`, `upload`,
`schedule`, `open_run`, `open_registry` and `Evaluation`; `tune` searches for parameters. Each is imported when it is
used first; see docs/python.md.
"""

__version__ = "0.1.0"

# As typing has it, whose import would take longer than that of this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_pipelines.accelerators.plan import plan
    from gpu_pipelines.artifacts.evaluation import Evaluation
    from gpu_pipelines.driver.drift import watch
    from gpu_pipelines.driver.evaluating import evaluate
    from gpu_pipelines.driver.exporting import export
    from gpu_pipelines.driver.prediction import predict
    from gpu_pipelines.driver.programs import compile, run, upload
    from gpu_pipelines.driver.runs import open_run
    from gpu_pipelines.driver.schedules import schedule
    from gpu_pipelines.registry import open_registry
    from gpu_pipelines.tuning.tune import tune

__all__ = [
    "Evaluation",
    "__version__",
    "compile",
    "evaluate",
    "export",
    "open_registry",
    "open_run",
    "plan",
    "predict",
    "run",
    "schedule",
    "tune",
    "upload",
    "watch",
]

_PLACES = {
    "Evaluation": "gpu_pipelines.artifacts.evaluation",
    "compile": "gpu_pipelines.driver.programs",
    "evaluate": "gpu_pipelines.driver.evaluating",
    "export": "gpu_pipelines.driver.exporting",
    "open_registry": "gpu_pipelines.registry",
    "open_run": "gpu_pipelines.driver.runs",
    "plan": "gpu_pipelines.accelerators.plan",
    "predict": "gpu_pipelines.driver.prediction",
    "run": "gpu_pipelines.driver.programs",
    "schedule": "gpu_pipelines.driver.schedules",
    "tune": "gpu_pipelines.tuning.tune",
    "upload": "gpu_pipelines.driver.programs",
    "watch": "gpu_pipelines.driver.drift",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
