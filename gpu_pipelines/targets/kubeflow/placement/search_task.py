"""The task of a pipeline that lets Katib carry out a search."""

from kfp import dsl

from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import SPEC_ARGUMENT, TrainJobSpec

_LAUNCHER = "gpu_pipelines.targets.kubeflow.in_cluster.experiment"


def search_component(spec: TrainJobSpec) -> dsl.base_component.BaseComponent:
    """The component that creates an Experiment, and waits for its end.

    Args:
        spec: what the TrainJob of a trial is made of.
    """

    @dsl.container_component
    def search_by_katib(study: str, job: dsl.OutputPath(str)):  # type: ignore[no-untyped-def, valid-type]
        """Lets Katib carry out a search, each of whose trials is a TrainJob.

        Args:
            study: Directory of the study, made by begin_study.

        Returns:
            job: Name of the Experiment.
        """
        arguments = [SPEC_ARGUMENT, spec.dumps(), "--study", study, "--job", job]
        return dsl.ContainerSpec(image=STEPS_IMAGE, command=["python3", "-m", _LAUNCHER], args=arguments)

    return search_by_katib
