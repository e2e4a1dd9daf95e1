"""Vertex AI as a target of the commands: runs, versions in Artifact Registry, and schedules."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators.fallback import Fallback
from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.dag import load_request
from gpu_pipelines.dag.placement import TRAINS
from gpu_pipelines.dag.places import OUTPUT, REGISTRY
from gpu_pipelines.errors import InvalidRequestError, UserError
from gpu_pipelines.notifications.recipients import recipients_of
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.step_environment import MOUNTED
from gpu_pipelines.targets.cloud import CloudTarget, told_left_out
from gpu_pipelines.targets.compiled import with_image
from gpu_pipelines.targets.data_nodes import STANDARD
from gpu_pipelines.targets.messages import Compiled, Done, Outcome, Submission, is_own, shown_request
from gpu_pipelines.targets.own.pipeline import CHECKPOINT_URI, OwnPipeline
from gpu_pipelines.targets.plan_lines import told_warnings
from gpu_pipelines.targets.runs.account import RunAccount, with_cost
from gpu_pipelines.targets.runs.names import NAMED_HERE, new_run_name
from gpu_pipelines.targets.runs.trial_record import FILE, RUNS, hours_by_trial
from gpu_pipelines.targets.scheduling import UPLOADED_REMEDY
from gpu_pipelines.targets.target import Target, require_no_flags
from gpu_pipelines.targets.vertex.options import VertexOptions
from gpu_pipelines.targets.vertex.placement.data_nodes import DataNodes
from gpu_pipelines.targets.vertex.placement.fallback import choices_in, not_in, told_choices
from gpu_pipelines.targets.vertex.target import IMAGE_PARAMETER, VertexTarget, evaluation_for, require_runnable
from gpu_pipelines.tasks.model_sizes import LARGEST_BUILT_IN

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.targets.messages import Request, Values, Watch
    from gpu_pipelines.targets.runs.continued import GoneOn
    from gpu_pipelines.targets.runs.earlier import EarlierRun
    from gpu_pipelines.targets.vertex.placement.machines import StepMachines
    from gpu_pipelines.targets.vertex.scheduling import VertexSchedules

#: Services that are empty on a run's own emulator, by the prefix of their places.
_EMPTY = {"bq://": "BigQuery", "gs://": "Cloud Storage", MOUNTED: "Cloud Storage"}
#: Kinds of places that a run writes to, which may be empty.
_NOT_READ = (REGISTRY, OUTPUT)


@dataclass(frozen=True)
class Uploaded:
    """Further information about a pipeline on Vertex AI.

    Attributes:
        machines: the GPUs of its steps.
        template: address of its uploaded version; None if there is none.
    """

    machines: Sequence[StepMachines]
    template: str | None


class Vertex(VertexTarget, CloudTarget):
    """Vertex AI Pipelines."""

    name = "vertex"
    title = readers = "Vertex AI"
    Options = VertexOptions
    options: VertexOptions
    place_for_files = f"a bucket: {MOUNTED}BUCKET/…"

    def __init__(self, options: VertexOptions | None = None, settings: ProjectSettings | None = None) -> None:
        Target.__init__(self, options, settings)
        if self.options.emulate:
            from gpu_pipelines.targets.vertex.emulated import settings_for

            self.settings = settings_for(self.settings)
        asked = self.options
        # Whether to check the project before a run is sent, and the messages of these checks.
        self._is_sent, self._told = False, list[str]()
        nodes = DataNodes(asked.data_nodes, asked.data_machine_type or "", asked.data_strategy or STANDARD)
        told = recipients_of(asked.notify, asked.notify_nothing_new, self.settings, variables=())
        VertexTarget.__init__(self, self.settings, self.options.job, nodes, told)

    def can_read(self, uri: str) -> bool:
        """Buckets, tables and samples; files in a mounted bucket; on an emulator, files of this machine."""
        if self.options.emulate and Path(uri).is_absolute() and Path(uri).exists():
            return True
        return super().can_read(uri) or (uri.startswith(MOUNTED) and uri != MOUNTED)

    def problems(self, compiled: Compiled, arguments: Mapping[str, Any]) -> list[str]:
        """Whether the model is too large for the GPU of the evaluation, or the run's own emulator has no data."""
        from gpu_pipelines.targets.vertex.placement.machines import not_evaluated

        return self._empty(compiled, arguments) or not_evaluated(compiled.spec, arguments)

    def _empty(self, compiled: Compiled, arguments: Mapping[str, Any]) -> list[str]:
        """Places that a run would read from services that are empty on its own emulator."""
        if not self.options.emulate:
            return []
        places = load_request(compiled.name.replace("-", "_")).places(arguments)
        return [
            f"The {each.parameter} {each.uri} is in {service}, which is empty on the emulator that --emulate starts. "
            "Load it into one that runs (gpu-pipelines emulator start), and run there; see docs/emulator.md."
            for each in places
            for scheme, service in _EMPTY.items()
            if each.uri.startswith(scheme) and each.kind not in _NOT_READ and each.parameter != "checkpoint_uri"
        ]

    def defaults(self) -> dict[str, Any]:
        """The images of the project, whose settings file does not exist where the steps run."""
        return {"serving_image": self.settings.serving_image, IMAGE_PARAMETER: self.settings.image}

    def placed(self, own: OwnPipeline, plans: Mapping[str, AcceleratorPlan]) -> OwnPipeline:
        """The pipeline as Vertex AI runs it."""
        # Without an image, its placeholder is replaced when the file is run.
        settings = replace(self.settings, image=self.settings.image or STEPS_IMAGE)
        made = own.placed(VertexTarget(settings, self.options.job, self._data), plans, CHECKPOINT_URI)
        require_runnable(made.text)
        return made

    def told_of(self, own: OwnPipeline, plans: Mapping[str, AcceleratorPlan], region: str | None) -> list[str]:
        """Warnings about all machines, also those of Google's own components, and lists of artifacts that are too
        long."""
        from gpu_pipelines.targets.vertex.placement.collected import told_collected
        from gpu_pipelines.targets.vertex.placement.machines import machines_of, told_unknown

        told = told_warnings(each.plan for each in machines_of(own.spec, region))
        return [*told, *told_unknown(own.spec), *told_collected(own.spec)]

    def load(self, request: Request) -> Compiled:
        """The pipeline with a name, in a file, or at the address of an uploaded version."""
        needed = ["repository"] if request.to_publish else ["project", "region", "pipeline_root"]
        request.require(self, *needed)
        self._is_sent = not request.to_publish and not self.options.emulate
        return self._loaded(request)

    def fitted(self, compiled: Compiled, request: Request, values: Values) -> Compiled:
        """The pipeline with the time limit that the newest trial in this directory gives its training."""
        training = next((each for each in compiled.origin.machines if each.step == TRAINS), None)
        if not self.options.wishes(self.settings)["accelerator"] or self.options.hours is not None or training is None:
            return compiled
        hours = hours_by_trial(RUNS, values.arguments, training.plan)
        if hours is None:
            return compiled
        limited = self._loaded(request, hours)
        told = f"the trial in {RUNS / FILE} limits {TRAINS} to {hours:g} h; --hours gives another"
        return replace(limited, told=[told, *limited.told])

    def submission(self, compiled: Compiled, request: Request, values: Values) -> Submission:
        """The `PipelineJob` with a unique id."""
        from gpu_pipelines.targets.vertex.runs.pipelines import PipelineRequest, pipeline_job

        self._look_at_resources(compiled.spec)
        template = compiled.origin.template
        job = pipeline_job(compiled.spec, values.taken, self.settings, cache=request.cache, template=template)
        sent = PipelineRequest(new_run_name(compiled.name), job)
        return Submission(sent, lambda: [self._as_sent(f"pipelineJobs?pipelineJobId={sent.job_id}", sent.job)])

    def _look_at_resources(self, spec: Mapping[str, Any]) -> None:
        """Prints the machines of a pipeline's persistent resources.

        Raises:
            UserError: one does not exist, or lacks the machines of its steps.
        """
        from gpu_pipelines.targets.vertex.persistent_resource import told_resource
        from gpu_pipelines.targets.vertex.placement.machines import jobs_by_resource

        # A run's own emulator has no persistent machines.
        for resource, jobs in ({} if self.options.emulate else jobs_by_resource(spec)).items():
            print(told_resource(resource, jobs, self.settings), file=sys.stderr)

    @property
    def is_here(self) -> bool:
        """Whether runs are rehearsed on this machine."""
        return self.options.emulate

    def execute(self, submission: Submission, watch: Watch) -> Outcome:
        """Rehearses a run on an emulator, and waits for its end."""
        from gpu_pipelines.targets.vertex.emulated import run_emulated

        return run_emulated(self, submission, watch)

    def submit(self, submission: Submission) -> Done:
        """Submits a run."""
        from gpu_pipelines.targets.vertex.console import run_page
        from gpu_pipelines.targets.vertex.runs.pipelines import submit

        name, job_id = submit(submission.content, self.settings), submission.content.job_id
        lines = [f"submitted {job_id}", f"console: {run_page(name)}"]
        return Done(job_id, {"name": name, "job": job_id, "console": run_page(name)}, lines)

    def follow(self, run: str, watch: Watch, every: float) -> Outcome:
        """Waits for the end of a run, or of a custom job."""
        from gpu_pipelines.targets.vertex.jobs import custom_jobs
        from gpu_pipelines.targets.vertex.runs import pipelines
        from gpu_pipelines.targets.vertex.runs.follow import follow

        settings = pipelines.settings_of(run, self.settings)
        if custom_jobs.is_custom_job(run):
            outcome = custom_jobs.follow_job(custom_jobs.full_job_name(run, settings), settings, watch, every)
        else:
            with watch.steps() as observer:
                outcome = follow(pipelines.full_name(run, settings), settings, observer, every, watch.warn)
        return outcome if self.options.emulate else with_cost(outcome, lambda: self.account(run), watch.warn)

    def account(self, run: str) -> RunAccount:
        """The state and the cost of a run or a custom job."""
        from gpu_pipelines.targets.vertex.jobs import custom_jobs
        from gpu_pipelines.targets.vertex.runs import pipelines
        from gpu_pipelines.targets.vertex.runs.account import account_of_job, account_of_run

        settings = pipelines.settings_of(run, self.settings)
        if custom_jobs.is_custom_job(run):
            return account_of_job(custom_jobs.full_job_name(run, settings), settings)
        return account_of_run(pipelines.full_name(run, settings), settings)

    def cancel(self, run: str) -> str:
        """Cancels a run with the jobs of its steps, or a custom job."""
        from gpu_pipelines.targets.vertex import console
        from gpu_pipelines.targets.vertex.jobs import custom_jobs
        from gpu_pipelines.targets.vertex.runs import pipelines

        settings = pipelines.settings_of(run, self.settings)
        if custom_jobs.is_custom_job(run):
            name = custom_jobs.full_job_name(run, settings)
            custom_jobs.cancel_job(name, settings)
            page = console.custom_job_page(name)
        else:
            name = pipelines.full_name(run, settings)
            pipelines.cancel(name, settings)
            page = console.run_page(name)
        return f"asked to cancel {name.rpartition('/')[2]}\nconsole: {page}"

    def is_run(self, run: str) -> bool:
        """Whether a name is the full name of a job, or has the form of this target's runs."""
        from gpu_pipelines.targets.vertex.runs.pipelines import FULL_NAME

        return bool(FULL_NAME.fullmatch(run) or NAMED_HERE.fullmatch(run))

    def earlier(self, run: str) -> EarlierRun:
        """A run in the form in which another one can continue it."""
        from gpu_pipelines.targets.vertex.jobs import custom_jobs
        from gpu_pipelines.targets.vertex.runs import earlier, pipelines

        if custom_jobs.is_custom_job(run):
            raise InvalidRequestError(f"{run} is a custom job, not a run of a pipeline.", "Submit it again.")
        settings = pipelines.settings_of(run, self.settings)
        return earlier.earlier_run(pipelines.full_name(run, settings), settings)

    def going_on(self, compiled: Compiled, found: GoneOn, earlier: EarlierRun) -> Compiled:
        """The pipeline without the finished steps of an earlier run."""
        # It is no longer an uploaded version.
        return replace(compiled, spec=found.documents[0], origin=replace(compiled.origin, template=None))

    def publish(self, compiled: Compiled, tags: Sequence[str]) -> Done:
        """Uploads a version to the repository."""
        from gpu_pipelines.targets.vertex.console import repositories_page
        from gpu_pipelines.targets.vertex.repository import DEFAULT_TAG, PipelineRepository

        uploaded = PipelineRepository(str(self.settings.repository)).upload(compiled.text, tags or [DEFAULT_TAG])
        lines = [
            f"uploaded {uploaded.package}",
            f"version: {uploaded.version}",
            f"tags:    {', '.join(uploaded.tags)}",
            f"address: {uploaded.address}",
        ]
        if project := uploaded.repository.split("/")[3]:
            lines.append(f"console: {repositories_page(project)}")
        return Done(uploaded.address, uploaded.to_json(), lines)

    @cached_property
    def schedules(self) -> VertexSchedules:
        """The schedules of the project in its region."""
        from gpu_pipelines.targets.vertex.scheduling import VertexSchedules

        return VertexSchedules(self.settings, self.options, self.version, self._look_at_resources)

    def version(self, address: str) -> Compiled:
        """An uploaded version, by its package, package and tag, or address; or a pipeline in a file."""
        if is_own(address):
            return self.of_file(address)
        from gpu_pipelines.targets.vertex.repository import PipelineRepository, find_version

        require_no_flags(f"The uploaded {address}", self.options, UPLOADED_REMEDY, ("network_attachment",))
        version = find_version(address, self.settings)
        stored = PipelineRepository(version.repository).text(version)
        return self.parsed(with_image(stored, self.settings, address), version.address, version.address)

    def parsed(self, text: str, origin: str, template: str | None = None) -> Compiled:
        """A compiled file, with the machines of its steps checked for the region and priced.

        Args:
            text: the file.
            origin: its name in messages.
            template: address of its uploaded version; None if there is none.
        """
        from gpu_pipelines.targets.vertex.placement import machines
        from gpu_pipelines.targets.vertex.placement.collected import told_collected
        from gpu_pipelines.targets.vertex.runs.pipelines import name_of, parsed_spec

        spec = parsed_spec(text, origin)
        if steps := machines.trainings_without_gpus(spec):
            raise UserError(
                f"{origin} has no GPU for {', '.join(steps)}: Vertex AI would train on the CPUs of a small machine.",
                "Compile it for Vertex AI: gpu-pipelines compile FILE --target vertex --accelerator l4:1",
            )
        found, several = machines.machines_of(spec, self.settings.region), choices_in(spec)
        plain = [each for each in found if each.step not in several]
        return Compiled(
            name_of(spec),
            text,
            spec,
            known={"data_nodes": machines.data_nodes_of(spec)},
            origin=Uploaded(tuple(found), template),
            told=[
                *machines.told_cost(plain, spec, self.settings.region),
                *told_choices(spec),
                *told_warnings(each.plan for each in found if each.step in several),
                *machines.told_unknown(spec),
                *told_collected(spec),
            ],
        )

    def _loaded(self, request: Request, training_hours: float | None = None) -> Compiled:
        if request.is_name:
            made = self.parsed(self._compiled(request, training_hours), request.pipeline)
            return replace(made, told=[*told_left_out(self.fallbacks[0]), *made.told, *self._told])
        if request.is_own:
            return self.of_file(request.pipeline)
        require_no_flags(request.pipeline, self.options)
        return self.version(request.pipeline)

    def of_file(self, place: str) -> Compiled:
        """A pipeline in a file, placed for the region of the settings."""
        own, _, written = self.own_in(place)
        return replace(self.parsed(own.text, place), written=written.spec, item_types=written.item_types)

    def _compiled(self, request: Request, training_hours: float | None) -> str:
        from gpu_pipelines.tasks.model_sizes import parameters_of_model

        model, recipe = (str(request.given.get(name) or "") for name in ("model", "recipe"))
        # The default of the parameter `model` is a built-in one.
        size = parameters_of_model(model, recipe) if model or recipe else LARGEST_BUILT_IN
        training, evaluation = self.choices(
            self.settings.region, training_hours, lambda plan: evaluation_for(plan, self.settings, size)
        )
        return self.text_of(request.pipeline, training.plans[0], evaluation)

    def looked_at(self, asked: Fallback) -> Fallback:
        """The choices for which the project has quota; remarks about their regions are noted."""
        if len(asked.plans) < 2:
            return asked
        from gpu_pipelines.targets.fallback.places import told_of_data, with_quota

        asked, told = with_quota(asked, self.settings)
        self._told = [*told, *told_of_data(asked.plans, self.settings)]
        return asked

    def possible(self, asked: Fallback) -> Fallback:
        """The choices without the regions that lack something that the jobs need."""
        if asked.is_plain:
            return asked
        found = asked.without(lambda plan: not_in(self.settings, plan.region or self.settings.region or ""))
        return self.looked_at(found) if self._is_sent else found

    def _as_sent(self, path: str, body: Mapping[str, Any]) -> str:
        from gpu_pipelines.google_cloud.connection import endpoint_of, location_of

        url = f"{endpoint_of(self.settings)}/v1/{location_of(self.settings)}/{path}"
        return shown_request("POST", url, body)
