"""`gpu-pipelines accelerators`: list, show, plan, advise, quota and catalog refresh.

Everything but typer is imported inside the commands, so that `--help` and `plan` respond at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from gpu_pipelines.cli.application import Application, print_json
from gpu_pipelines.cli.target_options import AsJson, with_fields
from gpu_pipelines.targets.options import fixed, option

if TYPE_CHECKING:
    from gpu_pipelines.accelerators.workload import Workload

app = Application(
    name="accelerators",
    help="Choose among the NVIDIA GPUs of Google Cloud: list, plan, compare and price them before anything is sent.",
)
catalog_app = Application(name="catalog", help="Refresh the facts that plans are made from.")
app.add_typer(catalog_app)

T = TypeVar("T")

Region = Annotated[str | None, typer.Option("--region", help="Google Cloud region; left open if not given.")]
Strategy = Annotated[str | None, typer.Option("--strategy", help="standard, spot, flex-start or reservation.")]


@app.command("list")
def list_gpus(region: Region = None, as_json: AsJson = False) -> None:
    """List every GPU by name, with its properties and its price."""
    with _errors_exit_2(as_json):
        from gpu_pipelines.accelerators.listing import list_accelerators
        from gpu_pipelines.cli import accelerator_views as views

        _print({"region": region, "gpus": list_accelerators(region)}, as_json, views.draw_gpu_list)


@app.command()
def show(name: Annotated[str, typer.Argument(help="Name of a GPU, e.g. h100.")], as_json: AsJson = False) -> None:
    """Show one GPU: hardware, software, machines, regions, prices, quota, and which facts are not verified."""
    with _errors_exit_2(as_json):
        from gpu_pipelines.accelerators.listing import describe_accelerator
        from gpu_pipelines.cli import accelerator_views as views

        _print(describe_accelerator(name), as_json, views.draw_gpu_details)


@app.command()
def plan(
    specs: Annotated[list[str], typer.Argument(metavar="SPEC", help="NAME:COUNT, one for each worker pool.")],
    nodes: Annotated[
        list[int] | None, typer.Option("--nodes", help="Machines; once for all, or once for each SPEC.")
    ] = None,
    region: Region = None,
    strategy: Strategy = None,
    machine_type: Annotated[
        list[str] | None, typer.Option("--machine-type", help="Machine type; once for all, or once for each SPEC.")
    ] = None,
    reservation: Annotated[str | None, typer.Option("--reservation", help="projects/P/zones/Z/reservations/R.")] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", help="Longest time that the job may run; gives a total price.")
    ] = None,
    memory: Annotated[float | None, typer.Option("--memory", help="Main memory of each machine, GB.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a choice of accelerator, fill in what is open, and price it.

    Several SPECs are the worker pools of one job, which must share a zone.
    """
    with _errors_exit_2(as_json):
        from gpu_pipelines.accelerators.request import PlanRequest
        from gpu_pipelines.cli import accelerator_views as views

        requests = [
            PlanRequest(spec, number, region, strategy, machine, reservation, hours, memory)
            for spec, number, machine in zip(
                specs,
                _for_each("--nodes", nodes or [1], specs),
                _for_each("--machine-type", machine_type or [None], specs),
                strict=True,
            )
        ]
        _print(views.plans(requests), as_json, views.draw_plans)


def _optimizers(others: Mapping[str, Any]) -> Iterable[str]:
    from gpu_pipelines.accelerators.workload import OPTIMIZER_BYTES

    return OPTIMIZER_BYTES


def _of_advice(default: Any, text: str, **more: Any) -> Any:
    return option(default, text, ("advise",), **more)


@dataclass(frozen=True, kw_only=True)
class AdviceOptions:
    """A job whose accelerators are ranked, from the options of the command line."""

    model: str | None = _of_advice(
        None, "DIRECTORY or OWNER/NAME of a Hugging Face model: its config.json fills in sizes that are not given."
    )
    parameters: str | None = _of_advice(None, "Parameters of the model, e.g. 7b.")
    active_parameters: str | None = _of_advice(None, "Parameters that one token uses, for a mixture of experts.")
    experts_per_token: int | None = _of_advice(None, "Experts of a layer that one token uses; 8 if not given.")
    tokens: str | None = _of_advice(None, "Tokens to train on, e.g. 10b.")
    samples: str | None = _of_advice(None, "Samples to train on, e.g. 1.2m.")
    flops_per_sample: str | None = _of_advice(None, "FLOPs of one forward pass; for models other than transformers.")
    activations_per_sample: str | None = _of_advice(
        None, "Bytes of activations that a forward pass in fp32 keeps for a sample, e.g. 118m."
    )
    sequence_length: int | None = _of_advice(None, "Tokens of one sample; 2,048, or the most that --model takes.")
    batch: int | None = _of_advice(None, "Samples in a micro-batch of one GPU; by default as many as fit.")
    precision: str = _of_advice("auto", "auto, bf16, fp16 or fp32.", words=fixed("auto", "bf16", "fp16", "fp32"))
    optimizer: str = _of_advice("adamw", "adamw, adamw_8bit, sgd, adafactor or muon.", words=_optimizers)
    lora_rank: int | None = _of_advice(None, "Train only LoRA adapters of this rank.")
    lora_targets: str = _of_advice(
        "", "all-linear has adapters on every linear layer, not in the attention alone.", words=fixed("all-linear")
    )
    quantize_base: str = _of_advice("", "nf4 holds the frozen layers in four bits (QLoRA).")
    layers: int | None = _of_advice(None, "Layers; estimated if not given.")
    hidden_size: int | None = _of_advice(None, "Width; estimated if not given.")
    attention_size: int | None = _of_advice(
        None, "Heads and key-value heads together, times head_dim; 1.25 times the width if not given."
    )
    vocabulary: int | None = _of_advice(None, "Size of the vocabulary; 32,000 if not given, 0 for models of images.")
    tied: bool | None = _of_advice(None, "The head has the weights of the table (tie_word_embeddings).")
    family: str | None = _of_advice(None, "Family of the model, model_type in its config.json, e.g. qwen3.")
    encoder: bool | None = _of_advice(
        None, "The model reads text and does not write it, such as a BERT that classifies."
    )
    recompute: bool | None = _of_advice(None, "Recompute activations (checkpointing); by default where needed.")
    ema: bool = _of_advice(False, "Keep a moving average of the weights.")
    measured_on: str | None = _of_advice(None, "SPEC of a trial run, e.g. l4:1.")
    samples_per_second: float | None = _of_advice(None, "Throughput of the trial, all GPUs together.")
    measured_memory: float | None = _of_advice(None, "Peak memory of one GPU in the trial, GB.")
    deadline: float | None = _of_advice(None, "Longest time that the job may take, in hours.")
    budget: float | None = _of_advice(None, "Most that the job may cost, in USD.")
    region: str | None = _of_advice(None, "Google Cloud region; left open if not given.")
    strategy: str | None = _of_advice(None, "standard, spot, flex-start or reservation.")
    accelerator: str | None = _of_advice(None, "Consider only NAME:COUNT or NAME/PARTITION:1.")
    max_nodes: int = _of_advice(4, "Most machines to consider.")
    mfu: float | None = _of_advice(None, "Model FLOPs utilization to assume, 0 to 1.")
    top: int = _of_advice(12, "Lines of the table.", minimum=1)

    def workload(self) -> Workload:
        """The job.

        Raises:
            UserError: a quantity cannot be read, or quantities contradict each other.
        """
        from gpu_pipelines.accelerators.workload import Workload, parse_quantity
        from gpu_pipelines.driver.model_workload import workload_of_model

        def quantity(text: str | None, what: str) -> float | None:
            return None if text is None else parse_quantity(text, what)

        same = (
            *("sequence_length", "batch", "precision", "optimizer", "lora_rank", "lora_targets"),
            *("layers", "hidden_size", "vocabulary", "tied", "encoder", "recompute", "ema", "measured_on"),
            *("experts_per_token", "family", "quantize_base", "attention_size"),
        )
        job = {
            "parameters": quantity(self.parameters, "parameters"),
            "active_parameters": quantity(self.active_parameters, "parameters"),
            "tokens": quantity(self.tokens, "tokens"),
            "samples": quantity(self.samples, "samples"),
            "flops_per_sample": quantity(self.flops_per_sample, "FLOPs"),
            "activation_bytes_per_sample": quantity(self.activations_per_sample, "bytes"),
            "measured_samples_per_second": self.samples_per_second,
            "measured_memory_gb": self.measured_memory,
            **{name: getattr(self, name) for name in same},
        }
        given: dict[str, Any] = {name: value for name, value in job.items() if value is not None}
        return workload_of_model(self.model, **given) if self.model else Workload(**given)


@app.command()
@with_fields(f"{__name__}:AdviceOptions", "advise")
def advise(options: Any, as_json: AsJson = False) -> None:
    """Rank the accelerators for a job by memory, time and cost.

    Describe the job by --model or --parameters, and by --tokens or --samples; or give what a trial run measured.
    """
    with _errors_exit_2(as_json):
        from gpu_pipelines.accelerators.advice import advise as rank
        from gpu_pipelines.accelerators.option import Wishes
        from gpu_pipelines.cli import accelerator_views as views

        wanted = ("deadline", "budget", "region", "strategy", "max_nodes", "mfu", "accelerator")
        found = rank(options.workload(), Wishes(*(getattr(options, name) for name in wanted)))
        _print(found.to_json(), as_json, lambda document: views.draw_advice(document, options.top))


@app.command()
def quota(
    spec: Annotated[str, typer.Argument(help="NAME:COUNT.")],
    nodes: Annotated[int, typer.Option("--nodes", help="Machines.")] = 1,
    region: Region = None,
    strategy: Strategy = None,
    project: Annotated[str | None, typer.Option("--project", help="Google Cloud project.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a project has the Vertex AI quota for a plan; exits with 1 if not. Needs credentials."""
    with _errors_exit_2(as_json):
        from gpu_pipelines.accelerators.live.quota import check_quota
        from gpu_pipelines.accelerators.plan import plan as make_plan
        from gpu_pipelines.cli import accelerator_views as views

        chosen = make_plan(spec, nodes=nodes, region=region, strategy=strategy)
        report = check_quota(chosen, project)
        _print(report.to_json(), as_json, views.draw_quota)
    if not report.enough:
        raise typer.Exit(1)


@catalog_app.command()
def refresh(
    project: Annotated[str | None, typer.Option("--project", help="Google Cloud project to read with.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Directory for the files; the catalog's own if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild prices and availability from the Cloud Billing and Compute Engine APIs. Needs credentials."""
    with _errors_exit_2(as_json):
        from gpu_pipelines.accelerators.live.refresh import refresh_catalog
        from gpu_pipelines.cli import accelerator_views as views

        _print(refresh_catalog(output, project=project).to_json(), as_json, views.draw_refreshed)


@contextmanager
def _errors_exit_2(as_json: bool) -> Iterator[None]:
    """A wrong request: its message on stderr (with --json, the problems on stdout as well), exit status 2."""
    from gpu_pipelines.errors import UserError

    try:
        yield
    except UserError as error:
        _fail(error, as_json)


def _fail(error: Exception, as_json: bool) -> NoReturn:
    if as_json:
        problems = [problem.to_json() for problem in getattr(error, "problems", ())]
        print_json({"error": str(error), "problems": problems})
    print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(2)


def _for_each(flag: str, values: Sequence[T], specs: Sequence[str]) -> list[T]:
    """One value for each SPEC; a single value applies to all."""
    if len(values) == 1:
        return list(values) * len(specs)
    if len(values) == len(specs):
        return list(values)
    from gpu_pipelines.errors import UserError

    raise UserError(
        f"{flag} is given {len(values)} times for {len(specs)} specifications.",
        "Give it once for all of them, or once for each.",
    )


def _print(document: Any, as_json: bool, draw: Any) -> None:
    if as_json:
        print_json(document)
    else:
        draw(document)
