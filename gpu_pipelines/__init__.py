"""Training pipelines for Kubeflow and Vertex AI in which you choose the accelerator.

Programs do what the commands do with the functions in `dir(gpu_pipelines)`; docs/python.md describes them. In addition,
`evaluate` scores checkpoints, `tune` searches for parameters, and `worker_pool_specs` converts a plan for Google's SDK.
Each is imported on first use.
"""

__version__ = "0.1.0"

# As in typing, whose import would take longer than that of this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_pipelines.accelerators.advice import advise
    from gpu_pipelines.accelerators.listing import describe_accelerator, list_accelerators
    from gpu_pipelines.accelerators.live.quota import check_quota
    from gpu_pipelines.accelerators.live.refresh import refresh_catalog
    from gpu_pipelines.accelerators.option import Wishes
    from gpu_pipelines.accelerators.plan import plan
    from gpu_pipelines.accelerators.workload import Workload
    from gpu_pipelines.artifacts.evaluation import Evaluation
    from gpu_pipelines.component_interface.description import describe_component, list_components
    from gpu_pipelines.driver.deploying import deploy
    from gpu_pipelines.driver.doctor import doctor
    from gpu_pipelines.driver.drift import watch
    from gpu_pipelines.driver.evaluating import evaluate
    from gpu_pipelines.driver.exporting import export
    from gpu_pipelines.driver.jobs import job_config, submit_job
    from gpu_pipelines.driver.machines import create_vm, vm_config
    from gpu_pipelines.driver.model_workload import workload_of_model
    from gpu_pipelines.driver.prediction import predict
    from gpu_pipelines.driver.programs import compile, list_parameters, run, upload
    from gpu_pipelines.driver.run import Run
    from gpu_pipelines.driver.runs import compare_runs, list_runs, open_run, remove_runs
    from gpu_pipelines.driver.schedules import Schedule, list_schedules, open_schedule, schedule
    from gpu_pipelines.migration.command import migrate_job
    from gpu_pipelines.registry import Registry, open_registry
    from gpu_pipelines.targets.container import Container
    from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions, worker_pool_specs
    from gpu_pipelines.tuning.tune import tune

__all__ = [
    "Container",
    "Evaluation",
    "JobOptions",
    "Registry",
    "Run",
    "Schedule",
    "Wishes",
    "Workload",
    "__version__",
    "advise",
    "check_quota",
    "compare_runs",
    "compile",
    "create_vm",
    "deploy",
    "describe_accelerator",
    "describe_component",
    "doctor",
    "evaluate",
    "export",
    "job_config",
    "list_accelerators",
    "list_components",
    "list_parameters",
    "list_runs",
    "list_schedules",
    "migrate_job",
    "open_registry",
    "open_run",
    "open_schedule",
    "plan",
    "predict",
    "refresh_catalog",
    "remove_runs",
    "run",
    "schedule",
    "submit_job",
    "tune",
    "upload",
    "vm_config",
    "watch",
    "worker_pool_specs",
    "workload_of_model",
]

_PLACES = {
    "Container": "gpu_pipelines.targets.container",
    "Evaluation": "gpu_pipelines.artifacts.evaluation",
    "JobOptions": "gpu_pipelines.targets.vertex.placement.job_spec",
    "Registry": "gpu_pipelines.registry",
    "Run": "gpu_pipelines.driver.run",
    "Schedule": "gpu_pipelines.driver.schedules",
    "Wishes": "gpu_pipelines.accelerators.option",
    "Workload": "gpu_pipelines.accelerators.workload",
    "advise": "gpu_pipelines.accelerators.advice",
    "check_quota": "gpu_pipelines.accelerators.live.quota",
    "compare_runs": "gpu_pipelines.driver.runs",
    "compile": "gpu_pipelines.driver.programs",
    "create_vm": "gpu_pipelines.driver.machines",
    "deploy": "gpu_pipelines.driver.deploying",
    "describe_accelerator": "gpu_pipelines.accelerators.listing",
    "describe_component": "gpu_pipelines.component_interface.description",
    "doctor": "gpu_pipelines.driver.doctor",
    "evaluate": "gpu_pipelines.driver.evaluating",
    "export": "gpu_pipelines.driver.exporting",
    "job_config": "gpu_pipelines.driver.jobs",
    "list_accelerators": "gpu_pipelines.accelerators.listing",
    "list_components": "gpu_pipelines.component_interface.description",
    "list_parameters": "gpu_pipelines.driver.programs",
    "list_runs": "gpu_pipelines.driver.runs",
    "list_schedules": "gpu_pipelines.driver.schedules",
    "migrate_job": "gpu_pipelines.migration.command",
    "open_registry": "gpu_pipelines.registry",
    "open_run": "gpu_pipelines.driver.runs",
    "open_schedule": "gpu_pipelines.driver.schedules",
    "plan": "gpu_pipelines.accelerators.plan",
    "predict": "gpu_pipelines.driver.prediction",
    "refresh_catalog": "gpu_pipelines.accelerators.live.refresh",
    "remove_runs": "gpu_pipelines.driver.runs",
    "run": "gpu_pipelines.driver.programs",
    "schedule": "gpu_pipelines.driver.schedules",
    "submit_job": "gpu_pipelines.driver.jobs",
    "tune": "gpu_pipelines.tuning.tune",
    "upload": "gpu_pipelines.driver.programs",
    "vm_config": "gpu_pipelines.driver.machines",
    "watch": "gpu_pipelines.driver.drift",
    "worker_pool_specs": "gpu_pipelines.targets.vertex.placement.job_spec",
    "workload_of_model": "gpu_pipelines.driver.model_workload",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_PLACES[name]), name)
    if not isinstance(value, type):
        value = import_module("gpu_pipelines.driver.python_calls").called_from_python(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
