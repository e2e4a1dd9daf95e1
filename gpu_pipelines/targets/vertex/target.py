"""The Vertex AI target: steps that use GPUs become CustomJobs on the plan's machines, the others are plain tasks.

A pipeline becomes a file of one YAML document, which is all that Vertex AI Pipelines takes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, cast

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.fallback import Fallback, fallback_of
from gpu_pipelines.accelerators.one_gpu import evaluation_plan
from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.component_interface.parameter import Parameter
from gpu_pipelines.dag.placement import (
    BEGINS_STUDY,
    CACHED_STEPS,
    EVALUATES,
    LOOKING_STEPS,
    PREDICTS,
    PREPARES,
    TELLS,
    UPLOADS,
)
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.notifications.recipients import Recipients
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.registry import VERTEX
from gpu_pipelines.step_environment import ACCELERATOR, preemption_variables
from gpu_pipelines.targets.compiled import by_libyaml, compiled, documents_of
from gpu_pipelines.targets.container import Container
from gpu_pipelines.targets.fallback.tries import Choice
from gpu_pipelines.targets.own.placed import executors_on_kubernetes
from gpu_pipelines.targets.process_1 import as_process_1
from gpu_pipelines.targets.study_tasks import StudyOutputs
from gpu_pipelines.targets.vertex.placement.data_nodes import DataNodes, data_job
from gpu_pipelines.targets.vertex.placement.fallback import LAUNCHER, become_fallback, choice_of
from gpu_pipelines.targets.vertex.placement.job_spec import STEP_HOURS, JobOptions, custom_job, require_job
from gpu_pipelines.targets.vertex.placement.tuning_job import TRIAL_COMMAND, TuningTasks, pools_of, tuning_job
from gpu_pipelines.tasks.model_sizes import LARGEST_BUILT_IN

#: CPUs and memory of the steps without a GPU; the service takes the closest machine that it has.
_STEP_SIZES = {PREPARES: ("16", "64G"), **dict.fromkeys((*LOOKING_STEPS, TELLS), ("1", "4G"))}
_OTHER_SIZE = ("4", "16G")
#: The parameter of a pipeline for the image of its steps, if none was known when it was compiled.
IMAGE_PARAMETER = "steps_image"
#: How often a step is restarted after an error, the seconds before the first time, and the most before others. The
#: service cannot distinguish its own errors from a user's. Each of these steps continues or repeats its work. The
#: request is checked once: its errors are a user's, and no work is lost with it. A training is restarted once, from its
#: newest checkpoint, unless it has a time limit.
_RETRIES = {
    "check-for-new-data": 2,
    PREPARES: 2,
    "train-model": 1,
    BEGINS_STUDY: 2,
    "finish-study": 2,
    "tune-model": 1,
    "evaluate-checkpoints": 2,
    "upload-model": 2,
    PREDICTS: 2,
}
_FIRST_PAUSE, _LONGEST_PAUSE = 60, 600
#: The service fills in the key of the run, or nothing: `ENCRYPTION_SPEC_KMS_KEY_NAME_PLACEHOLDER` of GCPC.
ENCRYPTION_KEY = "{{$.pipeline_encryption_key_name}}"
#: The program of a CustomJob's task: it creates the job, waits for it, and does no work of its own.
_LAUNCHER = "google_cloud_pipeline_components.container.v1.custom_job.launcher"
_TENSORBOARD_OUTPUT = "{root}/tensorboard/{job}"


class VertexTarget:
    """Places steps on Vertex AI.

    Args:
        settings: image, service account, network, key, TensorBoard and labels.
        options: disk, waiting, reduction servers and variables.
        data: the machines of data preparation; left out, a plain task.
        recipients: who gets a message from the last step of a run; None for nobody.

    Attributes:
        checkpoint_uri: None: each run has a place of its own.
        registry: Vertex AI Model Registry of the project and region that the run is in.
        pipeline_job: the job's full name.
        encryption_key: the run's.
        parameters: the image of the steps, if the settings have none.
        note: the image of the steps, or where to give one.
        for_check: number of machines that prepare the data.
        region: of the run, if the settings have one; a plan may name another.
    """

    checkpoint_uri: str | None = None
    registry = VERTEX
    pipeline_job = "{{$.pipeline_job_resource_name}}"
    encryption_key = ENCRYPTION_KEY
    #: What the steps with GPUs fall back to; each list begins with the plan that a pipeline is built with.
    fallbacks: Sequence[Fallback] = ()

    def __init__(
        self,
        settings: ProjectSettings | None = None,
        options: JobOptions | None = None,
        data: DataNodes | None = None,
        recipients: Recipients | None = None,
    ) -> None:
        self.recipients = recipients
        self._settings = settings or ProjectSettings()
        self._options = options or JobOptions()
        self._data = data or DataNodes()
        self.parameters: Mapping[str, Parameter] = {} if self._settings.image else {IMAGE_PARAMETER: _IMAGE}
        self.note: str = note_of_image(self._settings)
        self.region = self._settings.region
        self.for_check: Mapping[str, Any] = {"place": "vertex", "data_nodes": self._data.nodes}

    def place(self, component: Any, plan: AcceleratorPlan | None) -> Callable[..., Any]:
        """A CustomJob that runs the component on each machine of the plan; without a plan, the component itself.

        Data preparation on machines of its own is a CustomJob, too.

        Args:
            component: a KFP component.
            plan: its accelerators; None for a step that needs none.

        Raises:
            UserError: plan and settings do not go together, or the component cannot become a CustomJob.
        """
        choices = self._choices(component, plan)
        if plan is not None:
            placed = self._custom_job(component, plan)
        elif component.name == PREPARES and not self._data.is_plain_task:
            placed = self._data_job(component)
        else:
            placed = self._plain(component)

        def task(**arguments: Any) -> Any:
            made = placed(**arguments)
            if choices is not None:
                become_fallback(made, *choices, self._image)
            made.set_caching_options(component.name in CACHED_STEPS)
            retries = 0 if plan is not None and plan.hours else _RETRIES.get(component.name, 0)
            if retries:
                made.set_retry(retries, f"{_FIRST_PAUSE}s", 2.0, f"{_LONGEST_PAUSE}s")
            return made

        return task

    def study(self, component: Any, plan: AcceleratorPlan | None) -> Callable[..., Any]:
        """A search as a tuning job, each of whose trials is a CustomJob on the plan's machines.

        Arguments as for `StudyPlacement.study`; without a plan it is on a machine without accelerators.

        Raises:
            UserError: plan and settings do not go together.
        """
        if plan is None:
            return self.place(component, plan)
        if fallback_of(self.fallbacks, plan):
            raise UserError(
                "A search for parameters is a tuning job, which takes one kind of machine and no price limit here.",
                "Give one accelerator, one strategy and one region; -p budget=… limits what a search costs.",
            )
        from gpu_pipelines.components.study_begin.component import begin_study
        from gpu_pipelines.components.study_finish.component import finish_study

        image = self._settings.image or STEPS_IMAGE
        job = self._job(plan, Container(image, TRIAL_COMMAND), {})
        begin, finish = self.place(begin_study, None), self.place(finish_study, None)
        tasks = TuningTasks(tuning_job(job), finish, on_machines=self.place(finish_study, plan))
        key = job.get("encryption_spec", {}).get("kms_key_name") or ENCRYPTION_KEY
        output = self._tensorboard_output().get("base_output_directory", "")

        def study(**arguments: Any) -> StudyOutputs:
            given = {name: value for name, value in arguments.items() if name in begin_study.component_spec.inputs}
            begun = begin(processes=plan.processes, **given)
            pools = pools_of(self._of_the_form(job["job_spec"]["worker_pool_specs"]), begun.outputs["study"])
            places = {"base_output_directory": output, "encryption_spec_key_name": key}
            tracking = arguments.get("tracking", "none")
            return tasks.joined(begun, arguments["dataset"], tracking, worker_pool_specs=pools, **places)

        return study

    def text_of(
        self, pipeline: str, plan: AcceleratorPlan, evaluation: AcceleratorPlan | None = None, task: str = ""
    ) -> str:
        """The file of a pipeline of this project; arguments as for `CloudTarget.text_of`.

        Raises:
            UserError: there is no such pipeline, or it cannot run on Vertex AI like that.
        """
        from gpu_pipelines.dag import load_pipeline

        require_job(plan, self._settings, self._options_on(plan))
        text = compiled(load_pipeline(pipeline).build(self, plan, evaluation or self.evaluation_on(plan), task=task))
        require_runnable(text)
        return text

    def evaluation_on(self, training: AcceleratorPlan) -> AcceleratorPlan:
        """The evaluation's plan for a model that was trained on a plan: the one that suits the built-in models."""
        return evaluation_for(training, self._settings, LARGEST_BUILT_IN)

    @property
    def notification(self) -> Any:
        """GCPC's component that sends e-mails; the service itself runs it."""
        from google_cloud_pipeline_components.v1.vertex_notification_email import VertexNotificationEmailOp

        return VertexNotificationEmailOp

    @property
    def _image(self) -> Any:
        """The image of a plain step: its name, or a reference to the pipeline's parameter."""
        return self._settings.image or _image_of_the_form()

    def _plain(self, component: Any) -> Callable[..., Any]:
        cpus, memory = _STEP_SIZES.get(component.name, _OTHER_SIZE)
        placed = _with_vertex_model(component) if component.name == UPLOADS else component

        def task(**arguments: Any) -> Any:
            made = placed(**arguments)
            if component.component_spec.implementation.container.image == STEPS_IMAGE:
                made.set_container_image(self._image)
            made.set_cpu_limit(cpus).set_memory_limit(memory)
            for name, value in self._options.environment.items():
                made.set_env_variable(name, value)
            return made

        return task

    def _custom_job(self, component: Any, plan: AcceleratorPlan) -> Callable[..., Any]:
        of_author = component.component_spec.implementation.container.env or {}
        fields = _fields_of(self._job(plan, self._container_of(component), of_author))
        return self._in_image(_with_fields(component, {**fields, **self._tensorboard_output()}), fields)

    def _job(self, plan: AcceleratorPlan, container: Container, of_author: Mapping[str, str]) -> dict[str, Any]:
        """The `CustomJob` of a container on a plan's machines.

        Args:
            plan: the machines.
            container: container of each replica.
            of_author: variables that the author of a component set.

        Raises:
            UserError: plan and settings do not go together.
        """
        # Reduction servers are for gradients: a step on one machine has none to exchange.
        asked = self._options_on(plan)
        options = replace(asked, reduction_server=asked.reduction_server and plan.nodes > 1)
        require_job(plan, self._settings, options)
        told = {ACCELERATOR: plan.spec, **preemption_variables(plan.strategy)}
        options = replace(options, environment={**told, **of_author, **options.environment})
        plan = replace(plan, hours=plan.hours or STEP_HOURS)
        return custom_job(plan, "", container, self._settings, options)

    def _choices(self, component: Any, plan: AcceleratorPlan | None) -> tuple[list[Choice], float | None] | None:
        """The choices of the step, in order, with the price limit; None if there is only a plan."""
        # The evaluation may begin with the same machine as the training, and continue with others.
        lists = list(self.fallbacks)[:: -1 if component.name == EVALUATES else 1]
        found = fallback_of(lists, plan)
        if found is None:
            return None
        of_author = component.component_spec.implementation.container.env or {}
        return [self._choice(each, of_author) for each in found.plans], found.limits.total

    def _choice(self, plan: AcceleratorPlan, of_author: Mapping[str, str]) -> Choice:
        return choice_of(plan, self._job(plan, Container(STEPS_IMAGE), of_author)["job_spec"])

    def _options_on(self, plan: AcceleratorPlan) -> JobOptions:
        """The options of a job on a plan: only those plans of a list that wait get a waiting time."""
        others = {each.strategy for asked in self.fallbacks for each in asked.plans}
        waits = plan.strategy == "flex-start" or "flex-start" not in others
        return self._options if waits else replace(self._options, max_wait_hours=None)

    def _data_job(self, component: Any) -> Callable[..., Any]:
        # It has no curves to show, and needs no GPUs of a persistent resource.
        settings = replace(self._settings, tensorboard=None, persistent_resource=None)
        fields = _fields_of(data_job(self._data, self._container_of(component), settings, self._options))
        return self._in_image(_with_fields(component, fields), fields)

    def _container_of(self, component: Any) -> Container:
        """The container of each replica: the component's command, in the image of the steps or in one of its own."""
        given = _wrapped(component).component_spec.inputs["worker_pool_specs"].default[0]["container_spec"]
        image = given["image_uri"]
        image = (self._settings.image or STEPS_IMAGE) if image == STEPS_IMAGE else image
        return Container(image, as_process_1(given["command"]), given["args"])

    def _in_image(self, placed: Callable[..., Any], fields: Mapping[str, Any]) -> Callable[..., Any]:
        """A CustomJob's component whose containers use the image of the pipeline's parameter, if there is one."""
        if self._settings.image:
            return placed

        def task(**arguments: Any) -> Any:
            return placed(**arguments, worker_pool_specs=self._of_the_form(fields["worker_pool_specs"]))

        return task

    def _of_the_form(self, pools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Worker pools that use the parameter for the image of the steps, if there is one."""
        return [dict(pool) for pool in pools] if self._settings.image else _pools_of_the_form(pools)

    def _tensorboard_output(self) -> dict[str, Any]:
        from kfp import dsl

        fields = {}
        if self._settings.tensorboard:
            fields["base_output_directory"] = _TENSORBOARD_OUTPUT.format(
                root=dsl.PIPELINE_ROOT_PLACEHOLDER, job=dsl.PIPELINE_JOB_ID_PLACEHOLDER
            )
        return fields


_IMAGE = Parameter(
    "String",
    optional=False,
    text="Image that the steps run in, in a registry that the service account can read; docs/images.md says how to "
    "make it.",
)


def note_of_image(settings: ProjectSettings) -> str:
    """The note of a file about the image of its steps."""
    if settings.image:
        return f"Its steps run in {settings.image}."
    return f"Its steps run in the image that the parameter {IMAGE_PARAMETER} names, which has to be given."


def _image_of_the_form() -> Any:
    """A reference to the parameter of the pipeline that is being built."""
    from kfp.dsl.pipeline_channel import PipelineParameterChannel

    return PipelineParameterChannel(name=IMAGE_PARAMETER, channel_type="String")


def _pools_of_the_form(pools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Worker pools that use the parameter for the image of the steps; reduction servers keep their own."""
    made = copy.deepcopy([dict(pool) for pool in pools])
    for pool in made:
        if pool.get("container_spec", {}).get("image_uri") == STEPS_IMAGE:
            pool["container_spec"]["image_uri"] = _image_of_the_form()
    return made


def _fields_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """A CustomJob as the wrapped component's inputs besides those of the step."""
    spec = dict(job["job_spec"])
    fields = {"worker_pool_specs": spec.pop("worker_pool_specs"), **spec.pop("scheduling"), **spec}
    if "labels" in job:
        fields["labels"] = job["labels"]
    key = job.get("encryption_spec", {}).get("kms_key_name")
    return {**fields, "encryption_spec_key_name": key or ENCRYPTION_KEY}


def _with_fields(component: Any, fields: Mapping[str, Any]) -> Callable[..., Any]:
    """GCPC's component around a step, with other defaults."""
    wrapped = copy.deepcopy(_wrapped(component))
    for name, value in fields.items():
        wrapped.component_spec.inputs[name].default = value
    return cast(Callable[..., Any], wrapped)


def _with_vertex_model(component: Any) -> Any:
    """The component with a `google.VertexModel` in place of its model: the console links it to the registry, and GCPC's
    components take it, such as the one that deploys."""
    from google_cloud_pipeline_components.types.artifact_types import VertexModel

    changed = copy.deepcopy(component)
    changed.component_spec.outputs["model"].type = f"{VertexModel.schema_title}@{VertexModel.schema_version}"
    return changed


@cache
def _wrapped(component: Any) -> Any:
    """A component as GCPC's CustomJob component, made once for all plans.

    GCPC writes the component as YAML and reads it again, which takes most of the time.
    """
    from google_cloud_pipeline_components.v1.custom_job import create_custom_training_job_from_component

    require_no_field_of_a_job(component)
    with by_libyaml():
        return create_custom_training_job_from_component(component, display_name=component.name)


def require_no_field_of_a_job(component: Any) -> None:
    """Checks that no input of a component has the name of a CustomJob's field.

    The wrapped component has the inputs of both, and an input of the same name would silently replace the field.

    Args:
        component: a KFP component.

    Raises:
        UserError: names the inputs that do.
    """
    from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp

    taken = sorted(set(component.component_spec.inputs or {}) & set(CustomTrainingJobOp.component_spec.inputs))
    if taken:
        raise UserError(
            f"The component {component.name} cannot become a CustomJob: {', '.join(taken)} are fields of a CustomJob.",
            "Rename these inputs.",
        )


def evaluation_for(plan: AcceleratorPlan, settings: ProjectSettings, parameters: float | None) -> AcceleratorPlan:
    """The default plan of a pipeline's evaluation: `evaluation_plan`, or one node of a persistent resource's plan.

    Args:
        plan: plan of the training.
        settings: the persistent resource, whose machines are paid for anyway.
        parameters: parameters of the model; None if its size is not known.
    """
    return replace(plan, nodes=1) if settings.persistent_resource else evaluation_plan(plan, parameters)


def require_runnable(text: str) -> None:
    """Checks for what Vertex AI refuses, or silently treats in another way.

    Raises:
        UserError: the file has several documents, or a CustomJob's task has CPUs, memory or GPUs of its own.
    """
    documents: list[dict[str, Any]] = documents_of(text)
    if len(documents) != 1:
        steps = [label.removeprefix("exec-") for label in executors_on_kubernetes(documents[1])]
        raise UserError(
            f"The compiled pipeline has {len(documents)} YAML documents; Vertex AI takes one."
            + (f" The second is for Kubernetes, of {some_of(steps, most=5)}." if steps else ""),
            "Leave out settings for Kubernetes, such as secrets, volumes, node selectors and a PipelineConfig.",
        )
    for label, executor in documents[0]["deploymentSpec"]["executors"].items():
        container = executor.get("container", {})
        if {_LAUNCHER, LAUNCHER} & set(container.get("command", [])) and container.get("resources"):
            raise UserError(
                f"The step {label.removeprefix('exec-')} sets CPUs, memory or GPUs, but is a CustomJob: they would be "
                "set for the small container that starts the job.",
                "Leave it out; the machine is chosen by the accelerator and --machine-type.",
            )
