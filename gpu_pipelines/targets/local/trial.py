"""`gpu-pipelines run --trial`: trains a few dozen steps here, and projects the whole training to each accelerator."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import throughput_told
from gpu_pipelines.terminal import Column, Table, wrapped

if TYPE_CHECKING:
    from gpu_pipelines.accelerators.advice import Advice
    from gpu_pipelines.accelerators.option import Option
    from gpu_pipelines.accelerators.workload import Workload

TRIAL_STEPS = 40


@dataclass(frozen=True)
class Trial:
    """The results of a few steps.

    Attributes:
        figures: samples/s, peak memory, share of the time spent on data.
        model: parameters, operations and activations of the model, as in `training.json`.
        total_steps: optimizer steps of the whole training.
        total_samples: rows that the whole training takes.
        rows_per_process: rows that one process takes through the model at once.
        precision: precision of the trial.
        measured_on: the accelerators by their names in the catalog; None on CPUs and on GPUs that it does not know.
        optimizer: optimizer of the training.
        has_average: whether it keeps a moving average of the weights.
    """

    figures: Mapping[str, float]
    model: Mapping[str, Any]
    total_steps: int
    total_samples: int
    rows_per_process: int
    precision: str
    measured_on: str | None
    optimizer: str = "adamw"
    has_average: bool = False

    @property
    def hours_here(self) -> float:
        """Duration of the whole training on this machine."""
        return self.total_samples / self.figures["samples_per_second"] / 3600

    def workload(self) -> Workload:
        """The whole training, as measured on a GPU of the catalog, else by the counted operations."""
        from gpu_pipelines.accelerators.workload import Workload

        if self.measured_on:
            return Workload(
                samples=self.total_samples,
                steps=self.total_steps,
                measured_on=self.measured_on,
                measured_samples_per_second=self.figures["samples_per_second"],
                measured_memory_gb=self.figures["memory_gb"],
            )
        return Workload(
            parameters=self.model["trained_parameters"] + self.model["frozen_parameters"],
            frozen_parameters=self.model["frozen_parameters"],
            nf4_parameters=self.model["nf4_parameters"],
            optimizer=self.optimizer,
            ema=self.has_average,
            samples=self.total_samples,
            flops_per_sample=self.model["forward_flops_per_row"],
            activation_bytes_per_sample=self.model["activation_bytes_per_row"],
            steps=self.total_steps,
            batch=self.rows_per_process,
        )


def try_training(arguments: Mapping[str, Any], accelerator: str) -> Trial:
    """Prepares the data and trains a few steps; leaves nothing behind.

    Args:
        arguments: all parameters of the pipeline.
        accelerator: `cpu:N`, or empty for all GPUs that are here, else two CPU processes.

    Raises:
        UserError: the data or the training is not as requested.
    """
    from gpu_pipelines.artifacts.checkpoint import read_configuration
    from gpu_pipelines.component_interface.step import fields_from
    from gpu_pipelines.data.default_tokenizer import tokenizer_for
    from gpu_pipelines.data.prepare import prepare_data
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.step_environment import ACCELERATOR
    from gpu_pipelines.tasks.tasks import image_processor_for
    from gpu_pipelines.training.settings import TrainingSettings
    from gpu_pipelines.training.train import train_model

    if accelerator:
        os.environ[ACCELERATOR] = accelerator
    whole = fields_from(TrainingSettings, arguments)
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-trial-") as scratch:
        dataset, directory = Path(scratch) / "dataset", Path(scratch) / "checkpoints"
        prepare = fields_from(PrepareSettings, arguments)
        processor = prepare.image_processor or image_processor_for(prepare.task, whole.model)
        tokenizer = tokenizer_for(prepare.tokenizer, prepare.task, whole.model)
        prepare_data(replace(prepare, image_processor=processor, tokenizer=tokenizer), dataset)
        # There are no checkpoints to go on from, and the place of a profile is gone afterwards.
        steps = replace(
            whole,
            max_steps=TRIAL_STEPS,
            checkpoint_every_steps=TRIAL_STEPS,
            early_stopping_patience=0,
            resume_from_step=0,
            profile_steps="",
        )
        summary = train_model(steps, dataset, str(directory))
        if summary is None:
            raise UserError("A trial runs on one machine.", "Start it only on rank 0.")
        configuration = read_configuration(directory)
    whole = whole.resolved(summary.task, summary.rows)
    total = whole.total_steps(summary.rows)
    return Trial(
        figures=summary.figures(),
        model=configuration["model"],
        total_steps=total,
        total_samples=total * whole.global_batch_size,
        rows_per_process=whole.rows_at_once(summary.devices.processes),
        precision=configuration["precision"],
        measured_on=_spec_of(configuration["devices"]),
        optimizer=whole.optimizer,
        has_average=bool(whole.ema_decay),
    )


def _spec_of(devices: Mapping[str, Any]) -> str | None:
    """The accelerators of a training by their names in the catalog, if they can be planned with."""
    from gpu_pipelines.accelerators import PlanError, plan
    from gpu_pipelines.accelerators.device_names import catalog_names

    for name in catalog_names(devices["name"]):
        try:
            return plan(f"{name}:{devices['processes']}").spec
        except PlanError:
            continue
    return None


def shown_trial(trial: Trial) -> tuple[Advice, list[str | Table]]:
    """The advice from a trial, and lines with the measurements and their meaning here and on each accelerator."""
    from gpu_pipelines.accelerators.advice import advise
    from gpu_pipelines.accelerators.option import Wishes
    from gpu_pipelines.reports.durations import format_seconds

    figures, model = trial.figures, trial.model
    activations = model["activation_bytes_per_row"]
    advice = advise(trial.workload(), Wishes(max_nodes=1))
    lines = [
        f"trial of {int(figures['steps'])} steps: {throughput_told(figures['samples_per_second'])} samples/s on "
        f"{int(figures['processes'])} processes in {trial.precision}, {figures['memory_gb']:.2f} GB each, "
        f"{figures['data_loading_share']:.1%} of the time spent on reading data",
        f"model: {model['trained_parameters'] / 1e6:,.2f} M parameters to train, "
        f"{model['forward_flops_per_row'] / 1e9:,.3f} GFLOP forward"
        + (f" and {activations / 1e6:,.2f} MB of activations" if activations else "")
        + " for each row",
        f"whole training: {trial.total_steps:,} steps, {trial.total_samples:,} rows; "
        f"on this machine {format_seconds(trial.hours_here * 3600)}",
    ]
    told = "\n".join(wrapped(line, then="  ") for line in lines)
    notes = [f"{option.plan.spec} does not fit: {'; '.join(option.reasons)}." for option in advice.rejected]
    if any(is_too_small(option) for option in advice.options):
        notes.insert(
            0,
            "–: this model is too small for a gain to mean anything. On such a GPU a step takes as long as launching "
            "its kernels; a larger batch may help, a larger GPU will not.",
        )
    below = [wrapped(line) for line in ("", *notes, *advice.assumptions, *assumptions(trial))]
    return advice, [f"\n{told}\n", _table(trial, advice), *below]


def _table(trial: Trial, advice: Advice) -> Table:
    """The cheapest plan of each GPU that fits, on one machine; the cheapest first."""
    from gpu_pipelines.reports.durations import format_seconds

    figures = (Column.number(name) for name in ("GB/GPU", "time", "gain", "USD", "USD spot"))
    table = Table("accelerator", *figures, Column("region", spare=1))
    shown = set()
    for option in advice.options:
        gpu = option.plan.gpu
        if gpu is None or option.time is None or gpu.name in shown:
            continue
        shown.add(gpu.name)
        table.add_row(
            option.plan.spec,
            f"{option.memory_gb:.1f} of {option.usable_gb:.0f}" if option.memory_gb is not None else "",
            format_seconds(option.time.hours * 3600) if option.time.hours * 3600 >= 1 else "< 1 s",
            "–" if is_too_small(option) else f"{trial.hours_here / option.time.hours:,.1f} ×",
            _usd(option.on_demand),
            _usd(option.spot),
            option.price.region if option.price else "no known price",
        )
    return table


def is_too_small(option: Option) -> bool:
    """Whether the steps are so short that launching their kernels, not the speed of the GPU, takes the time."""
    return option.time is not None and option.time.limit == "launches"


def _usd(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.01" if value < 0.005 else f"{value:,.2f}"


def assumptions(trial: Trial) -> list[str]:
    """Assumptions of the projection besides those of the advice."""
    found = []
    if not trial.measured_on:
        found.append(
            "This machine has no GPU of the catalog, so times on GPUs follow from the operations counted here. Small "
            "models and small batches reach a lower MFU than assumed: repeat the trial on one GPU before a long job."
        )
    if trial.figures["data_loading_share"] > 0.2:
        found.append(
            "Reading data takes a good part of the time already here; faster GPUs would wait for it, and gain less."
        )
    if trial.hours_here < 0.25:
        found.append("It takes minutes on this machine: a GPU would hardly pay for the start of its machine.")
    return found
