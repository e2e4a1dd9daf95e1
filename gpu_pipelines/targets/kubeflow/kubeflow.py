"""Kubeflow Pipelines in GKE as a target of the commands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gpu_pipelines.accelerators.fallback import Fallback
from gpu_pipelines.errors import UserError
from gpu_pipelines.notifications.recipients import recipients_of
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.cloud import CloudTarget, told_left_out
from gpu_pipelines.targets.data_nodes import STANDARD, STRATEGIES
from gpu_pipelines.targets.kubeflow.author_settings import give_to_nodes
from gpu_pipelines.targets.kubeflow.connection import page_of
from gpu_pipelines.targets.kubeflow.placement.data_nodes import DataNodes, data_nodes_of
from gpu_pipelines.targets.kubeflow.runs.machine_times import NO_PRICES
from gpu_pipelines.targets.kubeflow.target import MOUNT_PATH, KubeflowTarget, claim_of
from gpu_pipelines.targets.messages import Compiled, Done, Outcome, Submission, shown_request
from gpu_pipelines.targets.options import STARTED, TALKING, CloudOptions, compiled_in, fixed, setting
from gpu_pipelines.targets.own.pipeline import OwnPipeline
from gpu_pipelines.targets.own.placed import executors_on_kubernetes
from gpu_pipelines.targets.plan_lines import told_machines, told_price, told_warnings
from gpu_pipelines.targets.runs.account import RunAccount, with_cost
from gpu_pipelines.targets.runs.names import OF_KUBEFLOW
from gpu_pipelines.targets.target import Target

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.targets.kubeflow.runs.request import KubeflowPipeline
    from gpu_pipelines.targets.kubeflow.scheduling import KubeflowSchedules
    from gpu_pipelines.targets.messages import Request, Values, Watch
    from gpu_pipelines.targets.runs.continued import GoneOn
    from gpu_pipelines.targets.runs.earlier import EarlierRun

_GROUP = "Kubeflow Pipelines"
#: KFP's placeholder for the id of a run (`dsl.PIPELINE_JOB_ID_PLACEHOLDER`, which takes KFP's compiler to import).
_RUN_ID = "{{$.pipeline_job_uuid}}"
_TALKING = TALKING - {"schedule update"}


@dataclass(frozen=True, kw_only=True)
class KubeflowOptions(CloudOptions):
    """The options of Kubeflow Pipelines."""

    data_nodes: int = compiled_in(1, "Nodes that prepare the data together.")
    data_strategy: str | None = compiled_in(
        None, "How these nodes are bought: standard or spot.", metavar="HOW", words=fixed(*STRATEGIES)
    )
    katib: bool = compiled_in(False, "Let Katib run a search, each trial as its own TrainJob; see docs/tuning.md.")
    kubeflow_host: str | None = setting(
        "Address of Kubeflow Pipelines, https://HOST/PATH.", _TALKING, "kubeflow_host", group=_GROUP, metavar="URL"
    )
    kubeflow_namespace: str | None = setting(
        "Namespace of the runs.", _TALKING, "kubeflow_namespace", group=_GROUP, metavar="NAME"
    )
    experiment: str | None = setting(
        "Experiment to file the run under.", STARTED, "kubeflow_experiment", group=_GROUP, metavar="NAME"
    )


class Kubeflow(KubeflowTarget, CloudTarget):
    """Kubeflow Pipelines in GKE."""

    name = "kubeflow"
    title = "Kubeflow"
    readers = "the pods"
    Options = KubeflowOptions
    options: KubeflowOptions

    def __init__(self, options: KubeflowOptions | None = None, settings: ProjectSettings | None = None) -> None:
        Target.__init__(self, options, settings)
        nodes = DataNodes(self.options.data_nodes, self.options.data_strategy or STANDARD)
        told = recipients_of(
            self.options.notify,
            self.options.notify_nothing_new,
            self.settings,
            variables=tuple(self.settings.secret_env),
            run_page=page_of(f"runs/details/{_RUN_ID}", self.settings) if self.settings.kubeflow_host else "",
        )
        KubeflowTarget.__init__(self, self.settings, self.options.environment, nodes, told, katib=self.options.katib)
        others = "registry=vertex://PROJECT/REGION for Vertex AI Model Registry"
        if self._claim:
            self.place_for_data = self.place_for_files = f"the mounted claim, {MOUNT_PATH}/…"
            others = f"registry={MOUNT_PATH}/registry, or {others}"
        else:
            self.place_for_data = self.place_for_files = "a bucket, gs://BUCKET/FOLDER"
        self.other_registries = others

    def can_read(self, uri: str) -> bool:
        """Buckets, tables and samples; and files on a mounted claim."""
        return super().can_read(uri) or self.can_write(uri)

    def can_write(self, path: str) -> bool:
        """Files on a mounted claim."""
        mounted = f"{MOUNT_PATH}/"
        return bool(claim_of(self.settings)) and path.startswith(mounted) and path != mounted

    def placed(self, own: OwnPipeline, plans: Mapping[str, AcceleratorPlan]) -> OwnPipeline:
        """The pipeline as Kubeflow runs it."""
        from gpu_pipelines.targets.kubeflow.runs.request import parsed_pipeline

        made = own.placed(self, plans, str(self.checkpoint_uri))
        if made is not own and len(made.documents) > 1:
            give_to_nodes(made.spec, executors_on_kubernetes(made.documents[1]))
        parsed_pipeline(made.text, made.name)
        return made

    def load(self, request: Request) -> Compiled:
        """The pipeline with a name, or in a compiled file."""
        request.require(self, "kubeflow_host")
        if request.is_own:
            return self.of_file(request.pipeline)
        name = request.pipeline
        training, evaluation = self.choices(self.settings.region, evaluated_on=self.evaluation_on)
        machines = [
            *told_left_out(training),
            *(line for each in training.plans for line in self._told_nodes({"training": each})),
            *self._told_nodes({"evaluation": self.fallbacks[1].plans[0]}),
            *([] if self.settings.region else [NO_PRICES]),
        ]
        text = self.text_of(name, training.plans[0], evaluation)
        return self._parsed(text, name, [*machines, *told_warnings(training.plans)])

    def possible(self, asked: Fallback) -> Fallback:
        """The choices that are possible in a cluster: it is in one region, and a node pool is one choice."""
        regions = {each.region for each in asked.plans}
        if len(regions) > 1:
            raise UserError(
                f"A cluster is in one region; --regions names {', '.join(sorted(map(str, regions)))}.",
                "Leave it out, and list accelerators and strategies for which it has node pools.",
            )
        if self.settings.node_pool and len(asked.plans) > 1:
            raise UserError(
                f"node_pool is {self.settings.node_pool}, which allows only one choice.",
                "Leave it out: GKE finds the pools by their GPUs and by how they are bought.",
            )
        return asked

    def of_file(self, place: str) -> Compiled:
        """A pipeline in a file, placed."""
        own, plans, written = self.own_in(place)
        unpriced = [NO_PRICES] if plans and not self.settings.region else []
        looped = {step.name for step in own.steps if step.in_loop}
        told = [*self._told_nodes(plans, looped), *unpriced, *told_warnings(plans.values())]
        return replace(self._parsed(own.text, place, told), written=written.spec, item_types=written.item_types)

    def _told_nodes(self, plans: Mapping[str, AcceleratorPlan], looped: Collection[str] = ()) -> list[str]:
        """The nodes of the steps, with their cost if the region of the cluster is known."""
        if not self.settings.region:
            return told_machines(plans)
        prices = (told_price(plan, self.settings.region, step not in looped) for step, plan in plans.items())
        return [f"{line}{price}" for line, price in zip(told_machines(plans), prices, strict=True)]

    @staticmethod
    def _parsed(text: str, origin: str, told: Sequence[str] = ()) -> Compiled:
        from gpu_pipelines.targets.kubeflow.runs.request import parsed_pipeline

        pipeline: KubeflowPipeline = parsed_pipeline(text, origin)
        known = {"data_nodes": data_nodes_of(pipeline.spec)}
        return Compiled(pipeline.name, text, pipeline.spec, known=known, origin=pipeline, told=told)

    def submission(self, compiled: Compiled, request: Request, values: Values) -> Submission:
        """The run with a unique name."""
        from gpu_pipelines.targets.kubeflow.runs.request import DEFAULT_EXPERIMENT, RunRequest, new_run_name

        sent = RunRequest(
            name=new_run_name(compiled.name),
            pipeline=compiled.origin,
            arguments=values.taken,
            experiment=self.settings.kubeflow_experiment or DEFAULT_EXPERIMENT,
            pipeline_root=self.settings.pipeline_root,
            service_account=self.settings.kubeflow_service_account,
            cache=request.cache,
        )
        return Submission(sent, lambda: [self._as_sent("runs", sent.to_json())])

    def submit(self, submission: Submission) -> Done:
        """Submits a run."""
        from gpu_pipelines.targets.kubeflow.runs.begun import retry
        from gpu_pipelines.targets.kubeflow.runs.request import submit
        from gpu_pipelines.targets.kubeflow.runs.state import run_page

        sent = submission.content
        if isinstance(sent, str):  # of `retried`
            retry(sent, self.settings)
            run_id, named, done = sent, {}, "goes on:"
        else:
            run_id, named, done = submit(sent, self.settings), {"name": sent.name}, "submitted"
        page = run_page(run_id, self.settings)
        document = {"run_id": run_id, **named, "console": page}
        return Done(run_id, document, [f"{done} {run_id}", f"console: {page}"])

    def follow(self, run: str, watch: Watch, every: float) -> Outcome:
        """Waits for the end of a run."""
        from gpu_pipelines.targets.kubeflow.runs.begun import follow

        self.settings.require("kubeflow_host")
        with watch.steps() as observer:
            outcome = follow(run, self.settings, observer, every).outcome(self.settings)
        return with_cost(outcome, lambda: self.account(run), watch.warn)

    def account(self, run: str) -> RunAccount:
        """The state and the cost of a run."""
        from gpu_pipelines.targets.kubeflow.runs.begun import account

        self.settings.require("kubeflow_host")
        return account(run, self.settings)

    def cancel(self, run: str) -> str:
        """Ends a run and its running steps."""
        from gpu_pipelines.targets.kubeflow.runs.begun import terminate
        from gpu_pipelines.targets.kubeflow.runs.state import run_page

        self.settings.require("kubeflow_host")
        terminate(run, self.settings)
        return f"asked to cancel {run}\nconsole: {run_page(run, self.settings)}"

    def is_run(self, run: str) -> bool:
        """Whether a name has the form of an id of Kubeflow Pipelines."""
        return bool(OF_KUBEFLOW.fullmatch(run))

    def retried(self, run: str) -> Submission:
        """A run whose failed steps the service starts again: under its name, with the results of the others."""
        from gpu_pipelines.targets.kubeflow.runs.begun import require_retriable

        self.settings.require("kubeflow_host")
        require_retriable(run, self.settings)
        return Submission(run, lambda: [self._as_sent(f"runs/{run}:retry", {})])

    def going_on(self, compiled: Compiled, found: GoneOn, earlier: EarlierRun) -> Compiled:
        """The pipeline without the finished steps of an earlier run on another target."""
        from gpu_pipelines.targets.kubeflow.runs.request import KubeflowPipeline

        spec, platform = found.documents[0], found.documents[1] if len(found.documents) > 1 else {}
        text = OwnPipeline(found.documents).text
        return replace(compiled, spec=spec, text=text, origin=KubeflowPipeline(text, spec, platform))

    def publish(self, compiled: Compiled, tags: Sequence[str]) -> Done:
        """Uploads a version, whose name is a digest unless it is given."""
        from gpu_pipelines.targets.kubeflow import uploads

        if len(tags) > 1:
            raise UserError("A version has one name on Kubeflow Pipelines.", "Give --tag once.")
        name = tags[0] if tags else uploads.default_version(compiled.text)
        version, is_new = uploads.upload(compiled.origin, name, self.settings)
        lines = [
            f"{'uploaded' if is_new else 'is there already:'} {version.pipeline}/{version.version}",
            f"console: {uploads.pipeline_page(version, self.settings)}",
        ]
        return Done(f"{version.pipeline}/{version.version}", version.to_json(), lines)

    @cached_property
    def schedules(self) -> KubeflowSchedules:
        """The recurring runs."""
        from gpu_pipelines.targets.kubeflow.scheduling import KubeflowSchedules

        return KubeflowSchedules(self.settings, self.options, self.of_file, self._as_sent)

    def _as_sent(self, path: str, body: object) -> str:
        """The request, for a dry run."""
        from gpu_pipelines.targets.kubeflow.connection import host_of

        return shown_request("POST", f"{host_of(self.settings)}/apis/v2beta1/{path}", body)
