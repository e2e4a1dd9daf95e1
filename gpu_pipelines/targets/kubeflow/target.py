"""The Kubeflow target: steps become pods of GKE; those on several nodes, or on Spot nodes, become TrainJobs.

Data preparation on several nodes is a TrainJob too, or a RayJob, whose nodes are a Ray cluster.

A pipeline becomes a file of two YAML documents: the pipeline, and settings for Kubernetes.

Spot nodes are taken away, and Kubeflow Pipelines cannot restart such a step: the manifests of its version 2.17 set
Argo's `retryPolicy: OnError`, which excludes failed pods, and the longest pause of `set_retry` becomes Argo's
`maxDuration`, which counts from the first attempt. The pod that waits for a TrainJob can restart it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.fallback import Fallback, fallback_of
from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.component_interface.step import THIS_RUN
from gpu_pipelines.dag.placement import CACHED_STEPS, EVALUATES, PREDICTS, PREPARES, TELLS, require_one_node
from gpu_pipelines.errors import UserError
from gpu_pipelines.notifications.recipients import Recipients
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.registry import VERTEX
from gpu_pipelines.step_environment import ACCELERATOR, RUN, STORAGE, UNFINISHED_WORK, preemption_variables
from gpu_pipelines.targets.compiled import compiled, note_of_file
from gpu_pipelines.targets.kubeflow.in_cluster.node_choices import choice_of, with_choices
from gpu_pipelines.targets.kubeflow.placement.data_nodes import DataNodes
from gpu_pipelines.targets.kubeflow.placement.pods import GPU_RESOURCE, QUEUE_LABEL, PodNeeds, pod_needs
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import (
    DEFAULT_HOURS,
    SPEC_ARGUMENT,
    TrainJobSpec,
    require_no_trainers,
    runtime_for,
)
from gpu_pipelines.targets.process_1 import as_process_1
from gpu_pipelines.targets.study_tasks import StudyOutputs, finished

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter


#: Where steps keep finished work until all of it is done.
_UNFINISHED = {PREPARES: "unfinished-preparations", PREDICTS: "unfinished-predictions"}
#: The claim to mount if neither a claim nor a bucket for checkpoints is given, and the place of claims.
DEFAULT_CLAIM, MOUNT_PATH = "gpu-pipelines", "/mnt/gpu-pipelines"
#: CPUs and GiB of memory of the steps without a GPU.
_STEP_SIZES = {PREPARES: PodNeeds(8, 32), TELLS: PodNeeds(1, 2)}
_OTHER_SIZE = PodNeeds(2, 8)
#: The pod that waits for a TrainJob computes nothing.
LAUNCHER_SIZE = PodNeeds(1, 2)
#: How often a TrainJob on Spot nodes is created again when nodes are taken away.
SPOT_RESTARTS = 10
#: How often a TrainJob is created again on nodes that are not Spot: maintenance takes those too.
_OTHER_RESTARTS = 3
#: The label by which Kubeflow Pipelines finds the pods of a run (LabelKeyWorkflowRunId of its backend).
_RUN_LABEL = "metadata.labels['pipeline/runid']"
_LAUNCHER = "gpu_pipelines.targets.kubeflow.in_cluster.train_job"


class KubeflowTarget:
    """Places steps on Kubeflow Pipelines in GKE.

    Args:
        settings: image, claim or bucket, node pool, pull secret, queue, service account.
        environment: variables of the steps.
        data: the nodes that prepare the data.
        recipients: who gets a message from the last step of a run; None for nobody.
        katib: whether Katib carries out a search; else it is one step, whose trials share a node.

    Raises:
        UserError: a variable is one that Kubeflow Trainer sets.

    Attributes:
        checkpoint_uri: on the claim or in the bucket, a folder for each run; artifacts are uploaded only when a step
            ends.
        registry: a directory of the claim; without a claim Vertex AI Model Registry.
        pipeline_job: the run's name; Vertex AI's registry takes only names of its own pipeline jobs.
        encryption_key: that of the settings, for models in Vertex AI Model Registry.
        notification: None: Kubeflow Pipelines has no component that sends e-mails.
        parameters: none.
        note: the image of the steps, or how to give one.
        for_check: that it is Kubeflow, and the number of nodes that prepare the data if there are several.
    """

    pipeline_job = "{{$.pipeline_job_name}}"
    notification = None
    parameters: Mapping[str, Parameter] = MappingProxyType({})
    #: What the steps with GPUs fall back to; each list begins with the plan that a pipeline is built with.
    fallbacks: Sequence[Fallback] = ()

    def __init__(
        self,
        settings: ProjectSettings | None = None,
        environment: Mapping[str, str] | None = None,
        data: DataNodes | None = None,
        recipients: Recipients | None = None,
        *,
        katib: bool = False,
    ) -> None:
        self.recipients = recipients
        self._katib = katib
        self._settings = settings or ProjectSettings()
        self._environment = dict(environment or {})
        require_no_trainers({*self._environment, *self._settings.secret_env})
        self._data = data or DataNodes()
        several = {"data_nodes": self._data.nodes} if self._data.nodes > 1 else {}
        self.for_check: Mapping[str, Any] = {"place": "kubeflow", **several}
        self.note = note_of_file(self._settings)
        self.encryption_key = self._settings.encryption_key or ""
        self._claim = claim_of(self._settings)
        # Where steps write while they run.
        self._storage = (self._settings.checkpoints or MOUNT_PATH).rstrip("/")
        self.checkpoint_uri: str | None = f"{self._storage}/checkpoints/{THIS_RUN}"
        self.registry = f"{MOUNT_PATH}/registry" if self._claim else VERTEX

    def place(self, component: Any, plan: AcceleratorPlan | None) -> Callable[..., Any]:
        """The component as a pod on a node of the plan, or as a TrainJob on several nodes or on Spot nodes.

        Args:
            component: a KFP component.
            plan: its accelerators; None for a step that needs none.

        Raises:
            UserError: GKE has no such nodes.
        """
        name = component.name
        needs = _STEP_SIZES.get(name, _OTHER_SIZE) if plan is None else pod_needs(plan, self._settings)
        train_job = self._train_job(name, plan, needs)
        is_train_job = train_job is not None
        image = component.component_spec.implementation.container.image
        if is_train_job and image not in (STEPS_IMAGE, self._image):
            raise UserError(
                f"{name} runs in {image}. On several nodes, and on Spot nodes, a step is started by this project.",
                f"Make an image FROM {self._image}, and give it to the component and as --image; or take one node.",
            )

        def task(**arguments: Any) -> Any:
            made = component(**arguments)
            made.set_caching_options(name in CACHED_STEPS)
            if name in _UNFINISHED:
                # Artifacts are uploaded only when a step ends, so only files outside of them outlive its pod.
                made.set_env_variable(UNFINISHED_WORK, self._unfinished(name))
            if train_job is not None:
                _become(made, train_job)
            self._in_pod(made, LAUNCHER_SIZE if is_train_job else needs)
            if plan is not None and not is_train_job:
                for told, value in {ACCELERATOR: plan.spec, **preemption_variables(plan.strategy)}.items():
                    made.set_env_variable(told, value)
                self._limit(made, plan)
            return made

        return task

    def study(self, component: Any, plan: AcceleratorPlan | None) -> Callable[..., Any]:
        """A search as an Experiment of Katib, each of whose trials is a TrainJob; or as one step.

        Arguments as for `StudyPlacement.study`; without a plan it is on a node without accelerators.

        Raises:
            UserError: GKE has no such nodes, or one step would have several.
        """
        if fallback_of(self.fallbacks, plan):
            raise UserError(
                "A search for parameters takes one kind of node and no price limit here.",
                "Give one accelerator and one strategy; -p budget=… limits what a search costs.",
            )
        if plan is None or not self._katib:
            require_one_node(plan)
            return self.place(component, plan)
        from gpu_pipelines.components.study_begin.component import begin_study
        from gpu_pipelines.components.study_finish.component import finish_study
        from gpu_pipelines.targets.kubeflow.placement.search_task import search_component

        begin, finish = self.place(begin_study, None), self.place(finish_study, None)
        on_machines = self.place(finish_study, plan)
        search = self.place(search_component(self._trial(plan)), None)

        def study(**arguments: Any) -> StudyOutputs:
            given = {name: value for name, value in arguments.items() if name in begin_study.component_spec.inputs}
            begun = begin(processes=plan.processes, **given).outputs
            ended = search(study=begun["study"]).outputs["job"]
            tracking = arguments.get("tracking", "none")
            return finished(begun, arguments["dataset"], tracking, ended, finish, on_machines)

        return study

    def text_of(
        self, pipeline: str, plan: AcceleratorPlan, evaluation: AcceleratorPlan | None = None, task: str = ""
    ) -> str:
        """The file of a pipeline, two YAML documents; arguments as for `CloudTarget.text_of`.

        Raises:
            UserError: there is no such pipeline, or GKE has no such nodes.
        """
        from gpu_pipelines.dag import load_pipeline

        return compiled(load_pipeline(pipeline).build(self, plan, evaluation, task=task))

    def evaluation_on(self, training: AcceleratorPlan) -> AcceleratorPlan:
        """The evaluation's plan for a model that was trained on a plan: one GPU of its kind, or one of its machines."""
        from gpu_pipelines.accelerators.one_gpu import one_gpu

        return one_gpu(training)

    @property
    def _image(self) -> str:
        return self._settings.image or STEPS_IMAGE

    def _in_pod(self, task: Any, needs: PodNeeds) -> None:
        """Gives a task the needs of its pod, the claim, and the variables."""
        from kfp import kubernetes

        # No limit on CPUs: a pod may use idle ones.
        if task.container_spec.image == STEPS_IMAGE:
            task.set_container_image(self._image)
        task.set_cpu_request(str(needs.cpus))
        task.set_memory_request(f"{needs.memory_gib}Gi").set_memory_limit(f"{needs.memory_gib}Gi")
        if needs.gpus:
            task.set_accelerator_type(GPU_RESOURCE).set_accelerator_limit(needs.gpus)
        if needs.shared_memory_gib:
            kubernetes.empty_dir_mount(task, "shared-memory", "/dev/shm", "Memory", f"{needs.shared_memory_gib}Gi")  # noqa: S108
        for label, value in needs.node_selector.items():
            kubernetes.add_node_selector(task, label, value)
        for toleration in needs.tolerations:
            kubernetes.add_toleration_json(task, toleration.to_json())
        if self._claim:
            kubernetes.mount_pvc(task, self._claim, MOUNT_PATH)
        if self._settings.pull_secret:
            kubernetes.set_image_pull_secrets(task, [self._settings.pull_secret])
        if needs.gpus and self._settings.kueue_queue:
            kubernetes.add_pod_label(task, QUEUE_LABEL, self._settings.kueue_queue)
        kubernetes.use_field_path_as_env(task, RUN, _RUN_LABEL)
        for name, value in {STORAGE: self._storage, **self._variables}.items():
            task.set_env_variable(name, value)
        for name, place in self._settings.secret_env.items():
            secret, _, key = place.partition("/")
            kubernetes.use_secret_as_env(task, secret, {key: name})

    @staticmethod
    def _limit(task: Any, plan: AcceleratorPlan) -> None:
        """Ends the pod of a task after the plan's hours."""
        from kfp import kubernetes

        if plan.hours:
            kubernetes.set_timeout(task, round(plan.hours * 3600))

    @property
    def _variables(self) -> dict[str, str]:
        """Variables of every container: the place of Vertex AI Model Registry, and the given ones."""
        google = {"GOOGLE_CLOUD_PROJECT": self._settings.project, "GOOGLE_CLOUD_REGION": self._settings.region}
        return {**{name: value for name, value in google.items() if value}, **self._environment}

    def _train_job(self, step: str, plan: AcceleratorPlan | None, needs: PodNeeds) -> TrainJobSpec | None:
        """The step as a TrainJob; None for a step that is a pod.

        Raises:
            UserError: there are no such nodes.
        """
        if plan is not None and (asked := fallback_of(list(self.fallbacks)[:: -1 if step == EVALUATES else 1], plan)):
            on_each = [(each, self._on_plan(step, each, pod_needs(each, self._settings))) for each in asked.plans]
            return with_choices(on_each[0][1], [choice_of(*each) for each in on_each], asked.limits.total)
        if plan is not None and (plan.nodes > 1 or plan.strategy == "spot"):
            return self._on_plan(step, plan, needs)
        if plan is None and step == PREPARES and self._data != DataNodes():
            self._data.require()
            spec = self._on_nodes(step, self._data.nodes, self._data.needs(needs), is_spot=self._data.is_spot)
            environment = {UNFINISHED_WORK: self._unfinished(step), **self._variables}
            return replace(spec, environment=environment, is_elastic=True)
        return None

    def _on_plan(self, step: str, plan: AcceleratorPlan, needs: PodNeeds) -> TrainJobSpec:
        return replace(
            self._on_nodes(step, plan.nodes, needs, is_spot=plan.strategy == "spot"),
            runtime=runtime_for(plan, self._settings.kubeflow_runtime),
            queue=self._settings.kueue_queue or "",
            environment={ACCELERATOR: plan.spec, **preemption_variables(plan.strategy), **self._variables},
            hours=plan.hours or DEFAULT_HOURS,
        )

    def _trial(self, plan: AcceleratorPlan) -> TrainJobSpec:
        """A trial of a search as a TrainJob."""
        return self._on_plan("trial", plan, pod_needs(plan, self._settings))

    def _on_nodes(self, step: str, nodes: int, needs: PodNeeds, *, is_spot: bool) -> TrainJobSpec:
        return TrainJobSpec(
            step=step,
            image=self._image,
            nodes=nodes,
            needs=needs,
            storage=self._storage,
            volume_claim=self._claim,
            mount_path=MOUNT_PATH if self._claim else "",
            pull_secret=self._settings.pull_secret or "",
            service_account=self._settings.kubeflow_service_account or "",
            secrets=dict(self._settings.secret_env),
            restarts=SPOT_RESTARTS if is_spot else _OTHER_RESTARTS,
        )

    def _unfinished(self, step: str) -> str:
        return f"{self._storage}/{_UNFINISHED[step]}"


def _become(task: Any, spec: TrainJobSpec) -> None:
    """Replaces the program of a task by one that creates a TrainJob for it, with the task's variables."""
    container = task.container_spec
    require_no_trainers(set(container.env or {}))
    on_node = replace(spec, environment={**(container.env or {}), **spec.environment})
    container.args = [SPEC_ARGUMENT, on_node.dumps(), "--", *as_process_1(container.command), *container.args]
    container.command = ["python3", "-m", _LAUNCHER]


def claim_of(settings: ProjectSettings) -> str:
    """The claim that is mounted in every step; empty if checkpoints go to a bucket and no claim is given."""
    return settings.volume_claim or ("" if settings.checkpoints else DEFAULT_CLAIM)
