"""Any text in any place of a command: an answer, or an error in the one form, and never a traceback."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import command

from gpu_pipelines.cli.main import app

#: Those that ask no service, serve nothing and train nothing.
COMMANDS = (
    "accelerators list",
    "accelerators show",
    "accelerators plan",
    "accelerators advise",
    "components list",
    "components show",
    "job config",
    "migrate",
    "models list",
    "models show",
    "parameters",
    "runs list",
    "runs show",
    "runs compare",
    "vm config",
)
GOOD = ("l4:1", "h100 : 8", "us-central1", "spot", "g2-standard-8", "3", "1.5", "1b", "A=1", "a=b", "i/j:1", "latest")
ODD = (
    "", " ", "é", "\u202e", "\udcff", "a\nb", "\x1b[31m", "x" * 300, "x" * 5000, "-", "-1", "0", "1e400", "nan",
    "9" * 30, "1_0", "٣", "[1", "{}", ",", "=", ":", "a:b:c", "~/x", "../..", "/", "/dev/null", "gs://", "https://[::1",
)  # fmt: skip
FILES = {
    "empty.yaml": b"",
    "latin.yaml": b"a: \xe9\n",
    "list.yaml": b"- 1\n",
    "cut.yaml": b'a: "b',
    "keys.yaml": b"? [a]\n: 1\n",
    "tag.yaml": b"a: !!python/name:os.system\n",
    "deep.yaml": b"[" * 3000,
    "bomb.yaml": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in b"bcdefghi"),
    "old.yaml": b"trainingInput: {scaleTier: BASIC_GPU, masterConfig: {imageUri: i}}\n",
    "pools.yaml": b"workerPoolSpecs: [3, {machineSpec: 4}]\n",
    "broken.py": b"def f(:\n",
    "raises.py": b"raise KeyError('x')\n",
    "runs/cut/run.json": b'{"format_version": 1, "run',
    "runs/deep/run.json": b"[" * 100_000,
    "runs/null/run.json": b"null",
}


def found_in(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    context = typer.Context(group, info_name="gpu-pipelines")
    for name in group.list_commands(context):
        _, each, _ = group.resolve_command(context, [name])
        if hasattr(each, "list_commands"):
            yield from found_in(each, f"{path}{name} ")
        else:
            yield f"{path}{name}", each


def words_of(each: Any, pick: random.Random) -> list[str]:
    """Some options of a command and its arguments, each with any text."""
    words = []
    for parameter in pick.sample(each.params, k=min(len(each.params), pick.choice((1, 2, 4)))) + [
        parameter for parameter in each.params if parameter.required
    ]:
        text = pick.choice(pick.choice((GOOD, ODD, ODD, tuple(FILES), ("dir", "loop", "missing", "runs"))))
        if parameter.param_type_name == "argument":
            words.append(text)
        elif parameter.is_flag:
            words.append(pick.choice(parameter.opts))
        elif "output" not in parameter.name:
            words.append(f"{parameter.opts[0]}={text}" if parameter.opts[0].startswith("--") else "-h")
    return words


def try_many(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, seed: int) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "dir").mkdir()
    (folder / "loop").symlink_to("loop")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pick, known = random.Random(seed), dict(found_in(typer.main.get_command(app)))
    for _ in range(number):
        name = pick.choice(COMMANDS)
        words = [*name.split(), *words_of(known[name], pick)]
        try:
            done = command(*words, cwd=folder)
        except Exception as error:
            raise AssertionError(words) from error
        if done.status == 0:
            assert "--json" not in words or json.loads(done.out) is not None, words
        else:
            assert done.status in (1, 2), words
            assert re.search(r"^error: ", done.err, re.MULTILINE), words
            assert "Traceback" not in done.err, words


def test_50_commands_with_any_text_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_many(tmp_path, monkeypatch, 50, seed=1)


@pytest.mark.slow
def test_2000_commands_with_any_text_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_many(tmp_path, monkeypatch, 2000, seed=2)
