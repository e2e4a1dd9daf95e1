"""What all commands have in common: help that is whole and in groups, one form of error, completion, parameters."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml
from command_line import command
from conftest import GPU_PIPELINES, PIPELINE

from gpu_pipelines.cli.application import print_json

COMPILED = Path(__file__).parents[2] / "compiled" / PIPELINE / "vertex"
MINE = Path(__file__).parents[1] / "own_pipelines" / "mine.py"


# Help


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_summaries_of_commands_are_whole_and_no_name_in_them_is_broken(tmp_path: Path, columns: int) -> None:
    told = command("-h", cwd=tmp_path, columns=columns).out
    assert not [line for line in told.splitlines()[1:] if line.endswith("...")]
    assert max(map(len, told.splitlines())) <= columns
    words = " ".join(told.split())
    assert "on this machine, or with --target on Vertex AI, in GKE, or on one VM." in words
    assert "GPUs of Google Cloud: list, plan, compare and price them before anything is sent." in words
    # A break at the dash would read "gpu- pipelines".
    assert "Vertex AI: gpu-pipelines migrate FILE" in words
    assert [line for line in told.splitlines() if line and line[0] != " "][1:] == [
        "Options:",
        "Pipelines:",
        "Models:",
        "Accelerators, jobs and machines:",
    ]


def test_the_options_of_a_run_stand_in_groups(tmp_path: Path) -> None:
    told = command("run", "-h", cwd=tmp_path, columns=100).out
    headings = [line.rstrip(":") for line in told.splitlines() if line and line[0] != " "][1:]
    assert headings == [
        "Arguments",
        "What is run",
        "Messages",
        "On this machine (target local)",
        "Machines in the cloud",
        "Container",
        "Project",
        "Kubeflow Pipelines",
        "Search for parameters (pipeline tune_train_evaluate_upload)",
        "Options",
    ]
    project = told.partition("\nProject:\n")[2].partition("\n\n")[0]
    assert "--region" in project
    assert "--nodes" not in project
    options = told.rpartition("\nOptions:\n")[2]
    assert len([line for line in options.splitlines() if line.startswith("  -")]) <= 6, "what is in no group"
    # A short help is not cut into pieces.
    assert "Project:" not in command("follow", "-h", cwd=tmp_path).out


# Errors


@pytest.mark.parametrize(
    ("arguments", "message", "remedy"),
    [
        (["rnu"], "error: No such command 'rnu'. Did you mean 'run'?", "gpu-pipelines -h"),
        (["run", PIPELINE, "--reigon", "x"], "error: There is no option --reigon. Did you mean --region?", "run -h"),
        (["run", PIPELINE, "--top-k", "3"], "error: There is no option --top-k. A parameter is given as -p", "run -h"),
        (["run", PIPELINE, "--model", "x"], "error: There is no option --model. A parameter is given as -p", "run -h"),
        (["run", PIPELINE, "a=1"], "error: Got unexpected extra argument(s) (a=1). A parameter is given", "run -h"),
        (["doctor", "#", "why"], "error: Got unexpected extra argument(s) (# why). The shell took a", "doctor -h"),
        (["run", "train.ipynb"], "error: train.ipynb is a notebook", "Call gpu_pipelines.run(FUNCTION) in it"),
        (["run"], "error: Missing argument", "gpu-pipelines run -h"),
        (["run", PIPELINE, "--nodes", "many"], "error: Invalid value for '--nodes'", "gpu-pipelines run -h"),
        (["models", "alias", "digits"], "error: Missing argument", "gpu-pipelines models alias -h"),
        (
            ["run", PIPELINE, "-p", "registry=~no-such-user/r"],
            "error: A path begins with ~ and a name that no user",
            "Give the",
        ),
        (["accelerators", "plan", "h100:3"], "error: No machine has 3 × h100", "Instead: h100:4"),
    ],
)
def test_errors_of_every_kind_have_one_form(tmp_path: Path, arguments: list[str], message: str, remedy: str) -> None:
    done = command(*arguments, cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    first, second = done.err.splitlines()[:2]
    assert first.startswith(message)
    assert remedy in second
    assert "Error:" not in done.err
    assert "Usage:" not in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")
def test_a_full_disk_is_no_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [GPU_PIPELINES, "parameters", PIPELINE, "--json"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: Something could not be written: [Errno 28] No space left on device.")
    assert "Traceback" not in done.stderr


def test_what_names_no_file_is_no_traceback(tmp_path: Path) -> None:
    done = command("runs", "show", "latest", "--runs", "x" * 300, cwd=tmp_path)
    # From Python 3.14 on a name that is too long is one that is not there.
    is_older = sys.version_info < (3, 14)
    status, told = (1, f"error: {'x' * 80}… names no file") if is_older else (2, "error: There are no runs in")
    assert (done.status, done.out) == (status, "")
    assert done.err.startswith(told)


def test_a_name_that_is_not_utf8_is_no_traceback(tmp_path: Path) -> None:
    done = command("run", PIPELINE, "--runs", "caf\udce9", "--dry-run", cwd=tmp_path)
    assert (done.status, done.out) == (1, "")
    assert r"caf\udce9" in done.err.splitlines()[0]
    assert "is not UTF-8" in done.err


def test_a_program_may_have_no_streams() -> None:
    def without(stream: int, spec: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", f'exec "$0" "$@" {stream}>&-', GPU_PIPELINES, "accelerators", "plan", spec]
        return subprocess.run(command, capture_output=True, text=True)

    done = without(1, "l4:4")
    assert (done.returncode, done.stderr) == (0, "")
    done = without(2, "l4:3")
    assert (done.returncode, done.stdout) == (2, "")


def test_python_runs_the_package_as_the_program() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "gpu_pipelines", "accelerators", "plan", "l4:3"], capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: No machine has 3 × l4")


def test_a_group_without_a_command_shows_what_it_has(tmp_path: Path) -> None:
    done = command("models", cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert "Usage: gpu-pipelines models" in done.err


def test_the_program_alone_says_what_to_do_first(tmp_path: Path) -> None:
    done = command(cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    first, *steps = done.err.partition("\n\n")[0].splitlines()
    assert first == "To begin:"
    programs = [step.split("  ")[1].split()[1:] for step in steps]
    assert ["init", "my-pipeline"] in programs
    # Each of them is there.
    assert all(command(program[0], "--help", cwd=tmp_path).status == 0 for program in programs)


# Parameters


def test_signs_that_a_terminal_has_not_end_no_run(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(
        "from kfp import dsl\n"
        "@dsl.component(install_kfp_package=False)\ndef tell() -> None:\n    print('3 × 4 ✓')\n"
        "@dsl.pipeline\ndef signs() -> None:\n    tell()\n"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = [GPU_PIPELINES, "run", "pipeline.py"]
    ran = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "tell: 3 ? 4 ?" in ran.stdout
    (log,) = tmp_path.glob("runs/*/logs/tell.log")
    assert "3 × 4 ✓" in log.read_text(encoding="utf-8")


def test_the_parameters_of_a_pipeline_are_described(tmp_path: Path) -> None:
    done = command("parameters", PIPELINE, cwd=tmp_path, columns=80)
    assert done.status == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    steps = [line for line in done.out.splitlines() if line and line[0] != " "]
    assert steps[:4] == ["prepare_data:", "train_model:", "evaluate_checkpoints:", "upload_model:"]
    assert "  learning_rate  (number; default 0.0)\n      Peak learning rate, reached after the warm-up. " in done.out
    assert "  packing  (true or false; default true)\n" in done.out
    assert "  gates  (list of texts; default empty)\n" in done.out
    assert done.out.endswith("\nwith -p script=…:\n  gpu-pipelines parameters train_script_evaluate_upload\n")


def test_the_parameters_of_a_compiled_file_are_its_own(tmp_path: Path) -> None:
    file = COMPILED / "image_classification" / "l4-1.yaml"
    said = json.loads(command("parameters", str(file), "--json", cwd=tmp_path).out)["parameters"]
    spec = yaml.safe_load(file.read_text())
    found = {each["name"]: each for each in said}
    assert set(spec["root"]["inputDefinitions"]["parameters"]) - {"advanced"} <= set(found)
    assert {"seed", "stratify"} <= set(found), "the fields of advanced"
    assert "packing" not in found, "a parameter of another task"
    assert found["registry"]["default"] == "vertex://"
    assert found["learning_rate"]["step"] == "train_model"
    assert all(each["description"] for each in said)


@pytest.mark.parametrize(("name", "message"), [("train_evaluate", "Did you mean"), ("x.yaml", "cannot be read")])
def test_parameters_of_what_is_not_there_are_an_error(tmp_path: Path, name: str, message: str) -> None:
    done = command("parameters", name, cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert message in done.err


def test_the_parameters_of_a_file_of_python_are_those_of_its_pipeline(tmp_path: Path) -> None:
    said = json.loads(command("parameters", f"{MINE}:mine", "--json", cwd=tmp_path).out)["parameters"]
    found = {each["name"]: each for each in said}
    assert set(found) == {"source", "task", "model", "steps", "gates", "text"}
    assert (found["steps"]["type"], found["steps"]["default"]) == ("Integer", 4)
    done = command("parameters", f"{MINE}:telling", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.out == "pipeline:\n  text  (text; default hello)\n\n"
    done = command("parameters", str(MINE), cwd=tmp_path)
    assert done.status == 2
    assert "has 3 pipelines" in done.err


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("- 1\n", "a compiled pipeline."), ('a: "cut', "YAML: "), ("? [a]\n: 1\n", "YAML: "), ("a: !b c\n", "YAML: ")],
)
def test_a_file_that_is_no_pipeline_has_no_parameters(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    done = command("parameters", "x.yaml", cwd=tmp_path)
    assert done.status == 2
    assert done.err.startswith(f"error: The file x.yaml is not {wrong}")


# Defaults of a task


def test_a_task_alone_brings_its_source_and_its_model(tmp_path: Path) -> None:
    done = command("run", PIPELINE, "-p", "task=text_classification", "--dry-run", cwd=tmp_path)
    assert done.status == 0, done.err
    shown = dict(line.split(None, 1) for line in done.out.splitlines() if len(line.split(None, 1)) == 2)
    assert (shown["source"], shown["model"]) == ("sample:docstrings", "bert-micro")
    said = command("parameters", PIPELINE, "--task", "causal_lm", "--json", cwd=tmp_path).out
    defaults = {each["name"]: each["default"] for each in json.loads(said)["parameters"]}
    assert (defaults["task"], defaults["source"], defaults["model"]) == (
        "causal_lm",
        "sample:documentation",
        "gpt2-micro",
    )


def test_a_dry_run_on_this_machine_is_one_document_for_programs(tmp_path: Path) -> None:
    done = command("run", PIPELINE, "-p", "epochs=3", "--dry-run", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    said = json.loads(done.out)
    assert (said["target"], said["pipeline"], said["parameters"]["epochs"]) == ("local", PIPELINE, 3)
    assert said["steps"]["train-model"] == ["prepare-data"]
    assert not (tmp_path / "runs").exists()


# Completion


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[list[str]], list[str]]]:
    """What bash offers, through the function that --install-completion installs, in a folder with a registry."""
    folder = tmp_path_factory.mktemp("bash")
    model = folder / "registry" / "digits"
    (model / "versions" / "1").mkdir(parents=True)
    (model / "model.json").write_text('{"format_version": 1, "name": "digits", "aliases": {"champion": 1}}')
    shell = subprocess.Popen(
        ["bash", "--norc"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": f"{GPU_PIPELINES.parent}:{os.environ['PATH']}"},
    )
    assert shell.stdin
    assert shell.stdout
    detection = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1"
    shell.stdin.write(f'eval "$({detection} gpu-pipelines --show-completion bash)"\n')

    def ask(words: list[str]) -> list[str]:
        assert shell.stdin
        assert shell.stdout
        given = " ".join(shlex.quote(word) for word in words)
        shell.stdin.write(f"COMP_WORDS=(gpu-pipelines {given}); COMP_CWORD={len(words)}; COMPREPLY=()\n")
        shell.stdin.write("_gpu_pipelines_completion gpu-pipelines; echo ${COMPREPLY[*]//$'\\n'/ }\n")
        shell.stdin.flush()
        return shell.stdout.readline().split()

    yield ask
    shell.stdin.close()
    shell.wait(timeout=30)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run", "train_e"], [PIPELINE]),
        (["run", PIPELINE, "--target", ""], ["compute_engine", "kubeflow", "local", "vertex"]),
        (["run", PIPELINE, "--strategy", "s"], ["spot", "standard"]),
        # bash breaks words at : and =, and puts what it is answered behind them.
        (["run", PIPELINE, "--target", "vertex", "--accelerator", "a100-80gb", ":"], ["1", "2", "4", "8"]),
        (["run", PIPELINE, "-p", "weight"], ["weight_decay=", "weight_decay=-1.0"]),
        (["run", PIPELINE, "-p", "task", "=", "te"], ["text_classification"]),
        (["accelerators", "show", "h"], ["h100", "h100-mega", "h200"]),
        (["accelerators", "advise", "--optimizer", "ada"], ["adafactor", "adamw", "adamw_8bit"]),
        (["models", "show", "d"], ["digits"]),
        (["serve", "digits", "@", "ch"], ["champion"]),
    ],
)
def test_a_shell_knows_the_words(
    offered: Callable[[list[str]], list[str]], words: list[str], wanted: list[str]
) -> None:
    assert offered(words) == wanted


def test_the_text_of_a_long_document_is_never_whole_in_memory() -> None:
    document = [{"name": "x" * 1000}] * 2000
    tracemalloc.start()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        print_json(document)
    assert tracemalloc.get_traced_memory()[1] < 500_000
    tracemalloc.stop()
