"""`gpu-pipelines models`: the models of a registry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_pipelines.cli.application import INTERRUPTED, Application, print_json
from gpu_pipelines.cli.target_options import AsJson
from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY, registry_of_project
from gpu_pipelines.errors import INTERRUPTED_PREFIX, UserError, some_of
from gpu_pipelines.terminal import Column, Table, wrapped

app = Application(help="List, promote, deploy and export registered models, and predict with them.")

Name = Annotated[str, typer.Argument(help="Name of the model.")]
Registry = Annotated[
    str,
    typer.Option(
        metavar="URI",
        help="A directory, vertex://PROJECT/REGION, or mlflow:https://HOST; by default that of gpu-pipelines.yaml, "
        f"else {DEFAULT_REGISTRY}.",
    ),
]
Version = Annotated[str, typer.Argument(help="NAME@ALIAS or NAME@VERSION; NAME alone is its champion.")]
VersionOrDirectory = Annotated[
    str, typer.Argument(help="NAME@ALIAS or NAME@VERSION; NAME alone is its champion; or the directory of a model.")
]
#: The metrics of the list; a model with none of these shows its first ones.
SHOWN_METRICS = ("accuracy", "log_loss", "loss", "token_accuracy")
MOST_METRICS_SHOWN = 2


@app.command("list")
def list_models(registry: Registry = "", as_json: AsJson = False) -> None:
    """List models with their newest version and their champion."""
    registry = registry or registry_of_project()
    opened = _registry(registry)
    models: list[dict[str, Any]] = []
    damaged = False
    for name in opened.names():
        try:
            versions = opened.versions(name)
            unread = {"damaged": found} if (found := [each.number for each in versions if each.unread]) else {}
            models.append({"name": name, "versions": len(versions), "aliases": opened.aliases(name), **unread})
            _warn_of_unread(versions)
        except UserError as error:
            damaged = True
            print(f"warning: the model {name!r} is not listed: {error.in_one_line}", file=sys.stderr)
    if as_json:
        print_json(models)
        return
    if not models:
        print(f"No other models in {registry}." if damaged else f"No models in {registry}. Run a pipeline to add one.")
        return
    rows = [
        [m["name"], m["versions"], *(m["aliases"].get(alias, "–") for alias in ("champion", "challenger"))]
        for m in models
    ]
    _print_table(
        Table("model", Column.number("versions"), Column.number("champion"), Column.number("challenger")), rows
    )


@app.command()
def show(name: Name, registry: Registry = "", as_json: AsJson = False) -> None:
    """Show the versions of a model."""
    from gpu_pipelines.numbers import figure
    from gpu_pipelines.registry.missing import missing_model

    registry = registry or registry_of_project()
    opened = _registry(registry)
    versions = opened.versions(name)
    if not versions:
        raise missing_model(opened, name, registry)
    _warn_of_unread(versions)
    if as_json:
        content = [
            {"version": v.number, "aliases": v.aliases, "place": v.place, **v.info}
            | ({"damaged": v.unread.in_one_line} if v.unread else {})
            for v in reversed(versions)
        ]
        print_json({"name": name, "versions": content})
        return
    # A version that was not evaluated has none.
    newest: dict[str, Any] = next((v.info["metrics"] for v in reversed(versions) if v.info["metrics"]), {})
    metrics = ([name for name in SHOWN_METRICS if name in newest] or list(newest))[:MOST_METRICS_SHOWN]
    rows = [
        [
            v.number,
            ", ".join(v.aliases) or "–",
            v.info["created"][:16].replace("T", " "),
            _gates(v),
            *(figure(v.info["metrics"].get(metric)) for metric in metrics),
        ]
        for v in reversed(versions)
    ]
    print(f"{name} in {opened.where(name)}")
    columns = [Column.number("version"), Column.text("aliases"), Column("created (UTC)", spare=1), Column("gates")]
    _print_table(Table(*columns, *map(Column.number, metrics)), rows)


def _warn_of_unread(versions: Sequence[Any]) -> None:
    for version in versions:
        if version.unread:
            print(
                f"warning: version {version.number} of {version.name!r}: {version.unread.in_one_line}", file=sys.stderr
            )


def _gates(version: Any) -> str:
    """The outcome of the gates, if there were any."""
    if version.unread:
        return "damaged"
    if not version.has_evaluation:
        return "not evaluated"
    return "passed" if version.info["passed"] else "failed"


@app.command()
def alias(
    name: Name,
    alias: Annotated[str, typer.Argument(help="The alias, such as champion.")],
    version: Annotated[str, typer.Argument(metavar="NUMBER", help="Number of the version.")],
    registry: Registry = "",
) -> None:
    """Point an alias at a version, such as champion after you have read the reports."""
    opened = _registry(registry or registry_of_project())
    if not version.isdecimal():
        there = some_of((str(each.number) for each in opened.versions(name)), most=10)
        raise UserError(f"version is {version[:200]!r}; give the number of a version.", f"{name} has {there}.")
    number = int(version)
    opened.set_alias(name, alias, number)
    print(f"{alias} of {name} is now version {number}")
    if alias == "champion" and opened.version(name, number).info.get("passed") is False:
        print(f"warning: version {number} did not pass its gates", file=sys.stderr)


@app.command()
def deploy(
    model: Version,
    endpoint: Annotated[str, typer.Option(help="Name of the endpoint; created if it does not exist.")],
    registry: Annotated[str, typer.Option(metavar="URI", help="vertex://PROJECT/REGION.")] = "vertex://",
    traffic: Annotated[int, typer.Option(metavar="PERCENT", help="Share of the requests for this version.")] = 100,
    accelerator: Annotated[str, typer.Option(metavar="SPEC", help="GPUs of each machine, such as l4:1.")] = "",
    machine_type: Annotated[str, typer.Option(help="Machine type; by default the smallest that fits.")] = "",
    min_replicas: Annotated[int, typer.Option(help="Fewest machines.")] = 1,
    max_replicas: Annotated[int, typer.Option(help="Most machines.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep models on the endpoint that get no requests.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Deploy again a version that is already deployed.")] = False,
    examples: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="File of requests and expected answers, for a container with a format of its own."
        ),
    ] = "",
    untested: Annotated[bool, typer.Option("--untested", help="Deploy without testing the predictions.")] = False,
) -> None:
    """Deploy a version to a Vertex AI endpoint. It gets requests only after its predictions match its evaluation."""
    from gpu_pipelines.driver.deploying import deployed
    from gpu_pipelines.registry.vertex_endpoint import DeploymentRequest

    request = DeploymentRequest(
        endpoint, traffic, accelerator, machine_type, min_replicas, max_replicas, keep, force, examples, untested
    )
    done = deployed(model, request, registry, _say)
    _say(f"{model} gets {done.percent} percent of the requests to {done.endpoint}")


@app.command()
def predict(
    model: VersionOrDirectory,
    source: Annotated[str, typer.Option(metavar="PLACE", help="Rows to predict: any source that prepare_data reads.")],
    output: Annotated[str, typer.Option(metavar="PLACE", help="A folder, gs://… or bq://PROJECT.DATASET.TABLE.")],
    registry: Registry = "",
    key_column: Annotated[str, typer.Option(metavar="NAME", help="Column of the keys of the predictions.")] = "",
    output_format: Annotated[str, typer.Option("--format", help="jsonl, if not given, or parquet.")] = "",
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of predict_batch.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a source, here or with -p ray_address=… on a Ray cluster.

    Run the same command again to continue an interrupted prediction.
    """
    from contextlib import redirect_stdout
    from dataclasses import asdict

    from gpu_pipelines.component_interface.parameter import parameters_in
    from gpu_pipelines.driver.parameters.arguments import all_arguments
    from gpu_pipelines.driver.prediction import predict as run_prediction
    from gpu_pipelines.errors import Interrupted
    from gpu_pipelines.prediction.outputs import filled_in, told
    from gpu_pipelines.prediction.settings import PredictSettings

    output = filled_in(output)  # so that the last line names the place
    own = {"source": source, "output": output, "registry": registry or registry_of_project()}
    known = {name: each for name, each in parameters_in(PredictSettings).items() if name not in own}
    # Messages call a column of keys and a format by the names of their parameters, which are therefore taken too.
    options = {"key_column": key_column, "output_format": output_format}
    own |= {name: value for name, value in options.items() if value}
    given = {**all_arguments(known, param or [], None), **own}
    try:
        with redirect_stdout(sys.stderr if as_json else sys.stdout):
            found = run_prediction(model, **given)
    except Interrupted as interrupted:
        print(f"{INTERRUPTED_PREFIX}{interrupted}; run the same command again to continue", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(asdict(found))
        return
    _say(told(found, output))


@app.command()
def watch(
    model: Version,
    source: Annotated[
        str,
        typer.Option(metavar="PLACE", help="The current rows: everything that predict takes, or logged requests."),
    ],
    output: Annotated[str, typer.Option(metavar="DIR", help="Folder of the page and of drift.json.")] = "drift",
    registry: Registry = "",
    dataset: Annotated[
        str,
        typer.Option(
            metavar="PLACE", help="Training data of a version without a profile; by default looked for in ./runs."
        ),
    ] = "",
    fail: Annotated[bool, typer.Option("--fail", help="End with status 1 if there is drift.")] = False,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of check_for_drift.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare current rows with a model's training data: inputs, predictions, and missing values."""
    from contextlib import redirect_stdout
    from dataclasses import asdict

    from gpu_pipelines.component_interface.parameter import parameters_in
    from gpu_pipelines.drift.settings import DriftSettings
    from gpu_pipelines.driver.drift import watch as run_check
    from gpu_pipelines.driver.parameters.arguments import all_arguments

    own = {"source": source, "registry": registry or registry_of_project()}
    known = {name: each for name, each in parameters_in(DriftSettings).items() if name not in own}
    given = {**all_arguments(known, param or [], None), **own}
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        found = run_check(model, output=output, dataset=dataset, **given)
    if as_json:
        print_json(asdict(found))
    else:
        _print_findings(found)
        _say(found.reason)
        print(f"report: {Path(output) / 'drift.html'}")
    if fail and found.has_drift:
        raise typer.Exit(1)


#: The most findings to show with and without drift, by the largest effects; the page has all.
_DRIFTED_SHOWN, _OTHERS_SHOWN = 30, 5


def _print_findings(found: Any) -> None:
    drifted = found.drifted
    shown = [*drifted[:_DRIFTED_SHOWN], *[each for each in found.findings if not each.drifted][:_OTHERS_SHOWN]]
    rows = [
        [each.name, f"{each.effect:.2f}", f"{each.p_corrected:.2g}", each.before, each.now, "drift" * each.drifted]
        for each in shown
    ]
    columns = [Column.text("what"), Column.number("effect"), Column.number("p"), Column("then", spare=1), Column("now")]
    if rows:
        _print_table(Table(*columns, Column("")), rows)
    more_drifted = max(0, len(drifted) - _DRIFTED_SHOWN)
    if more := len(found.findings) - len(shown) - more_drifted:
        print(f"and {more} more that have not drifted")
    if more_drifted:
        print(f"and {more_drifted} more that have drifted")


@app.command()
def export(
    model: VersionOrDirectory,
    format: Annotated[str, typer.Option(metavar="onnx|gguf", help="Format to write; GGUF is for language models.")],
    to: Annotated[str, typer.Option(metavar="PLACE", help="The output folder, a directory or gs://…; created.")],
    registry: Registry = "",
    dataset: Annotated[
        str,
        typer.Option(metavar="PLACE", help="Dataset of the test rows; by default looked for in ./runs."),
    ] = "",
    dtype: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help="Type of the numbers. ONNX: f32 (default) or f16. GGUF: f16 (default), f32, bf16 or q8_0.",
        ),
    ] = "",
    margin: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Largest share of its metric that the export may lose on the test rows."),
    ] = 0.01,
    opset: Annotated[int, typer.Option(help="Version of the ONNX operator set.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Export a version as ONNX or GGUF. It runs again on the test rows, and is refused if it has lost too much."""
    from contextlib import redirect_stdout

    from gpu_pipelines.driver.exporting import export as run_export

    options: dict[str, Any] = {"registry": registry or registry_of_project(), "dataset": dataset, "dtype": dtype}
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        exported = run_export(model, format, to, margin=margin, opset=opset, **options)
    if as_json:
        print_json({"place": exported.place, **exported.content})
        return
    _say(f"{exported.content['model']} is in {exported.place}, with export.json")


def _say(text: str) -> None:
    prose, *commands = text.split("\n")
    # A command that is broken into lines becomes two when it is pasted.
    print("\n".join([wrapped(prose, then="  "), *commands]), flush=True)


def _registry(uri: str) -> Any:
    from gpu_pipelines.registry.named import existing_registry

    return existing_registry(uri)


def _print_table(table: Table, rows: list[list[Any]]) -> None:
    for row in rows:
        table.add_row(*row)
    table.print()
