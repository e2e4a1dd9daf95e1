"""Tables and live progress at 80, 120 and 200 columns: only text shrinks; what is to be pasted is never broken."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Finished
from rich.console import Console
from test_command_line import command

from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.driver.progress import LiveProgress, progress_on
from gpu_pipelines.targets.steps import StepRecord
from gpu_pipelines.terminal import Column, Table, console_on, wrapped

WIDTHS = (80, 120, 200)
LONG = "a sentence of many words that says why this row is as it is and what to do about it, at some length " * 2


def printed(table: Table, width: int) -> list[str]:
    out = io.StringIO()
    table.print(Console(file=out, width=width))
    return out.getvalue().splitlines()


def jobs(*names: str) -> Table:
    table = Table("name", Column.number("USD"), Column("region", spare=1), Column.text("why"))
    for place, name in enumerate(names):
        table.add_row(name, f"{1000 * place:,}", "us-central1", LONG)
    return table


@pytest.mark.parametrize("width", WIDTHS)
def test_only_the_column_of_text_shrinks(width: int) -> None:
    names = ("h100-mega:8", "custom_model_training_nvidia_h100_gpus")
    lines = printed(jobs(*names), width)
    assert max(map(len, lines)) <= width
    for name in names:
        assert [line for line in lines if line.startswith(f"{name} ")], name
    words = " ".join(line[max(map(len, names)) :] for line in lines)
    assert all(re.search(rf"\b{re.escape(word)}", words) for word in LONG.split())


def test_what_there_is_no_place_for_is_said_and_text_goes_below_before_a_name_is_cut() -> None:
    name = "projects/123/locations/us-central1/pipelineJobs/train-evaluate-upload-20261122"
    lines = printed(jobs(name), 80)
    assert lines[1] == f"{name}    0", "wider than the terminal, and whole"
    assert lines[2].startswith("    a sentence of many words")
    assert "region" in lines[-1]
    assert lines[-1].startswith("Too narrow for: ")
    wide = printed(jobs(name), 200)
    assert "us-central1" in wide[1]
    assert not [line for line in wide if line.startswith("Too narrow")]


def test_a_column_with_nothing_in_it_takes_no_place() -> None:
    table = Table("name", Column("region", spare=1), Column.text(""))
    table.add_row("a" * 10, "us-central1", "")
    assert printed(table, 23) == ["name        region", f"{'a' * 10}  us-central1"]


def test_cells_of_other_scripts_are_as_wide_as_they_are_shown() -> None:
    table = Table("name", Column.number("rows"))
    table.add_row("猫", 1)
    table.add_row("cats", 22)
    assert printed(table, 80) == ["name  rows", "猫       1", "cats    22"]


def test_prose_is_wrapped_between_words_only() -> None:
    text = "run gpu-pipelines accelerators list --region us-central1 to see them"
    assert wrapped(text, "  why  ", width=36).splitlines() == [
        "  why  run gpu-pipelines",
        "       accelerators list --region",
        "       us-central1 to see them",
    ]


def test_prose_has_an_end_on_the_narrowest_terminal() -> None:
    for width in range(1, 9):
        assert wrapped("to see them", "  why  ", width=width).split() == ["why", "to", "see", "them"]


# Commands


def listed(tmp_path: Path, columns: int) -> Finished:
    return command("accelerators", "list", cwd=tmp_path, columns=columns)


@pytest.mark.parametrize("columns", WIDTHS)
def test_piped_output_follows_the_variable_columns(tmp_path: Path, columns: int) -> None:
    lines = listed(tmp_path, columns).out.splitlines()
    assert max(map(len, lines)) <= columns
    assert {line.split()[0] for line in lines[1:15]} == set(load_catalog().gpus)
    assert "l4 or a100" in "\n".join(lines)


def test_piped_output_has_all_columns_and_a_line_for_each_row(tmp_path: Path) -> None:
    lines = listed(tmp_path, 0).out.splitlines()
    assert re.split(r"\s{2,}", lines[0])[1:4] == ["product", "GB", "GB/s"]
    assert len(lines) == 1 + len(load_catalog().gpus) + 1
    assert "Too narrow" not in lines[-1]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize(
    "arguments",
    [
        ("accelerators", "plan", "h100:8", "--region", "us-central1", "--hours", "10"),
        ("accelerators", "show", "h100"),
        ("accelerators", "advise", "--parameters", "8b", "--tokens", "1b"),
        ("run", "train_evaluate_upload", "--dry-run"),
    ],
    ids=lambda arguments: arguments[1],
)
def test_commands_stay_within_the_width(tmp_path: Path, arguments: tuple[str, ...], columns: int) -> None:
    done = command(*arguments, cwd=tmp_path, columns=columns)
    assert done.status == 0, done.err
    # What is wider is one name, a quota's say, that nothing can be done about; or the DAG of the pipeline.
    wide = [line for line in done.out.splitlines() if len(line) > columns and "→" not in line]
    assert not [line for line in wide if not re.fullmatch(r"\s*(\S+ )?( *\S+  +)?\S+", line)]


# Progress


@pytest.mark.parametrize("width", [60, *WIDTHS])
def test_live_progress_keeps_names_and_times_whole(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width)
    progress = LiveProgress(console)
    progress.step_said("prepare-data", "kept 1,797 of 1,797 rows, left out 0 duplicates, rejected 0: train 1,430")
    progress.step_ended(StepRecord("prepare-data", "succeeded", 125.0))
    progress.step_ended(StepRecord("train-model", "reused"))
    progress.step_began("evaluate-checkpoints")
    progress.step_said("evaluate-checkpoints", f"checkpoint 3/8 [bold] {LONG}")
    console.print(progress._table())
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "✓ prepare-data 2 min 05 s kept 1,797 of" in text
    assert "↺ train-model reused" in text
    running = [line for line in lines if "evaluate-checkpoints" in line]
    assert len(running) == 1
    assert re.search(r"  0\.0 s +checkpoint 3/8", running[0])
    assert running[0].endswith("…"), "the text alone is cut"
    assert lines[-1] == running[0], "the line of a step that runs stays one line"


def test_a_pipe_gets_plain_lines_also_where_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    with progress_on(Console(file=out)) as progress:
        progress.step_began("train-model")
        progress.step_said("train-model", "step 8/8\tat 12:100:3")
    assert out.getvalue() == "train-model: started\ntrain-model: step 8/8\tat 12:100:3\n"


def test_what_looks_like_the_name_of_an_emoji_is_printed_as_it_is() -> None:
    out = io.StringIO()
    table = Table("rate", Column.text("why"))
    table.add_row("12:100:3", "s3:x:y")
    table.print(console_on(out))
    assert out.getvalue().splitlines()[1].split() == ["12:100:3", "s3:x:y"]


# Ctrl-C

CHILD = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)"
PARENT = f"""
import subprocess, sys, time
from gpu_pipelines.targets.local.runner.processes import no_process_left_behind
with no_process_left_behind(lambda: print("stopping", flush=True)):
    child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    print(child.pid, flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_ctrl_c_is_answered_before_the_processes_end_and_a_second_one_kills_them(second: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout
        child = int(run.stdout.readline())
        run.send_signal(signal.SIGINT)
        # The child ignores the SIGTERM that it gets now; it would be waited for for 35 s.
        assert run.stdout.readline() == "stopping\n"
        assert Path(f"/proc/{child}").exists()
        run.send_signal(second)
        run.communicate(timeout=25)
    assert run.returncode != 0
    assert not Path(f"/proc/{child}").exists()
