"""`gpu-pipelines compile`: pipelines and components as YAML files that Kubeflow and Vertex Pipelines take."""

from __future__ import annotations

import sys
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_pipelines.errors import UserError

DIFFERENCE_LINES_SHOWN = 20


def compile_pipelines(
    pipeline: Annotated[str | None, typer.Argument(help="Name of the pipeline.")] = None,
    target: Annotated[str, typer.Option(help="Where it will run: local.")] = "local",
    accelerator: Annotated[str, typer.Option(metavar="SPEC", help="What it trains on, such as cpu:2.")] = "cpu:2",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Write all files of the directory compiled.")] = False,
    check: Annotated[bool, typer.Option("--check", help="With --all: compare instead of writing.")] = False,
    directory: Annotated[Path, typer.Option(metavar="DIR", help="With --all: where the files are.")] = Path("compiled"),
) -> None:
    """Compile a pipeline, or all pipelines and components."""
    if every == (pipeline is not None):
        raise UserError("Give either the name of a pipeline or --all.")
    if target != "local":
        raise UserError(f"There is no target {target[:60]!r}.", "Valid: local.")
    if pipeline is not None:
        path = output or Path(f"{pipeline}.yaml")
        _write(path, _compiled(_built(pipeline, accelerator)))
        print(f"wrote {path}")
        return
    files = compiled_files()
    if check:
        _compare(files, directory)
        return
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        _write(directory / name, text)
    print(f"wrote {len(files)} files to {directory}")


def compiled_files() -> dict[str, str]:
    """The text of every file of the directory `compiled`, by its path there."""
    from gpu_pipelines.components.catalog import COMPONENTS, load_component
    from gpu_pipelines.pipelines import PIPELINES

    files = {f"{name}/local/cpu-2.yaml": _compiled(_built(name, "cpu:2")) for name in PIPELINES}
    return {**files, **{f"components/{name}.yaml": _compiled(load_component(name)) for name in COMPONENTS}}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"The file {path} cannot be written: {error.strerror}.") from None


def _built(name: str, accelerator: str) -> Any:
    from gpu_pipelines.pipelines import load_pipeline
    from gpu_pipelines.targets.local import LocalTarget, plan_here

    return load_pipeline(name).build(LocalTarget(), plan_here(accelerator))


def _compiled(source: Any) -> str:
    import tempfile

    from kfp import compiler

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "compiled.yaml"
        compiler.Compiler().compile(source, str(path))
        return path.read_text(encoding="utf-8")


def _compare(files: dict[str, str], directory: Path) -> None:
    there = {path.relative_to(directory).as_posix() for path in directory.rglob("*.yaml")}
    problems = [f"{name} is missing" for name in sorted(files.keys() - there)]
    problems += [f"{name} is of no pipeline, target or component" for name in sorted(there - files.keys())]
    for name in sorted(files.keys() & there):
        before = (directory / name).read_text(encoding="utf-8")
        if before != files[name]:
            lines = list(unified_diff(before.splitlines(), files[name].splitlines(), name, "compiled now", lineterm=""))
            problems.append("\n".join([f"{name} differs:", *lines[:DIFFERENCE_LINES_SHOWN]]))
    if problems:
        print("\n".join([*problems, "Run gpu-pipelines compile --all."]), file=sys.stderr)
        raise typer.Exit(1)
    print(f"{len(files)} files of {directory} are up to date")
