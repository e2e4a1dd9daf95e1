"""YAML that is small and stands for much, never ends, or says a thing twice: answered at once, and nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from gpu_pipelines.component_interface.parameter import Parameter
from gpu_pipelines.driver.parameters.arguments import all_arguments
from gpu_pipelines.errors import UserError
from gpu_pipelines.migration.job_file import read_job_file
from gpu_pipelines.project_settings import FILE, load_project_settings
from gpu_pipelines.targets.compiled import documents_of
from gpu_pipelines.targets.vertex.jobs.file import prepare_job
from gpu_pipelines.targets.vertex.options import JobFlags
from gpu_pipelines.yaml_input import data_of, node_of, text_of


def laughs(levels: int, width: int = 9) -> str:
    """A billion laughs: lists of lists, each of which repeats the one before."""
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def merged(levels: int) -> str:
    lines = ["m0: &m0 {x: 1}"]
    lines += [f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}], y{n}: 1}}" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


SMALL_AND_LARGE = {
    "laughs": laughs(9),
    "laughs as args": laughs(9) + "trainingInput: {args: *a8}\nworkerPoolSpecs: *a8\n",
    "merges": merged(25),
    "one text often": f"a: &a {'x' * 100_000}\nb: [{','.join(['*a'] * 900)}]",
    "recursive": "a: &a [*a]",
    "recursive mapping": "&a {a: *a}",
    "deep lists": "[" * 100_000,
    "deep mappings": "{a: " * 50_000,
    "deep keys": "? " * 100_000,
    "deep block": "\n".join(" " * n + "a:" for n in range(1_000)),
    "many values": "[" + "1," * 400_000 + "]",
    "many anchors": "[" + ",".join(f"&a{n} 1" for n in range(80_000)) + "]",
    "many directives": "".join(f"%TAG !a{n}! b\n" for n in range(60_000)) + "---\na: 1",
    "long number": "a: " + "9" * 900_000,
    "long time": "a: 1" + ":1" * 400_000,
    "long float": "a: 1" + ":1" * 400_000 + ".5",
    "large": "a: " + "x" * 2_000_000,
    "not UTF-8": "\udcff",
    "null byte": "a: \0",
    "two documents": "a: 1\n---\na: 2",
    "tag": "!!python/object/apply:os.system [id]",
    "binary": "a: !!binary aGk=",
    "unknown alias": "a: *b",
    "twice": "a: 1\nb: 2\na: 3",
    "list as a key": "? [a]\n: 1",
    "unclosed": "a: 'b",
    "colons": ":" * 900_000,
    "stars": "*" * 900_000,
    "bangs": "!" * 900_000,
    "pipes": "|" * 900_000,
    "comments": "#\n" * 400_000,
    "spaces": "a:" + " " * 900_000 + "1",
}


def random_text(seed: int) -> str:
    """Marks of YAML without sense, repeated."""
    make = random.Random(seed)
    marks = [
        "[",
        "{",
        "- ",
        "? ",
        ": ",
        "a: ",
        "&a ",
        "*a ",
        "<<: ",
        "!x ",
        "|\n",
        ">\n",
        "'",
        '"',
        "#",
        "\n",
        "  ",
        ",",
        "]",
        "}",
    ]
    pattern = "".join(make.choice(marks) for _ in range(make.randint(1, 12)))
    return laughs(make.randint(1, 12), make.randint(2, 30)) + pattern * make.randint(1, 20_000)


READERS = ("migrate", "job", "params", "settings")


def place(reader: str, folder: Path) -> Path:
    """The file that a reader reads in a folder."""
    return folder / (FILE if reader == "settings" else "file.yaml")


def read(reader: str, folder: Path) -> object:
    """Reads the file of a folder in one of the places that read a user's YAML."""
    file = place(reader, folder)
    if reader == "migrate":
        return read_job_file(file)
    if reader == "job":
        return prepare_job(JobFlags(), load_project_settings({}, folder / "none"), file)
    if reader == "params":
        return all_arguments({"a": Parameter("Dict"), "b": Parameter("List")}, (), file)
    return load_project_settings({}, folder)


@pytest.mark.parametrize("reader", READERS)
def test_yaml_that_stands_for_too_much_is_refused_everywhere(reader: str, tmp_path: Path) -> None:
    accepted = []
    for name, text in SMALL_AND_LARGE.items():
        place(reader, tmp_path).write_bytes(text.encode("utf-8", "surrogateescape"))
        try:
            read(reader, tmp_path)
        except UserError as error:
            said = str(error)
        else:
            accepted.append(name)
            continue
        assert 10 < len(said) < 2_000, name
    # Comments alone say nothing, which is no mistake in a file of parameters or of settings.
    assert accepted == (["comments"] if reader in ("params", "settings") else [])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_file(reader: str, device: str, tmp_path: Path) -> None:
    place(reader, tmp_path).symlink_to(device)
    with pytest.raises(UserError, match="is a device"):
        read(reader, tmp_path)


def test_a_pipe_is_read_as_a_shell_gives_it_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file.yaml")
    with pytest.raises(UserError, match="is empty"):
        read("migrate", tmp_path)
    migrate = f"{sys.executable} -m gpu_pipelines.cli.main migrate"
    # The file may be given in both ways, and a name beside it.
    shell = f"{migrate} --config <(sleep 1; echo 'jobId: [') trainer; {migrate} <(echo 'jobId: [') trainer"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.count("is not YAML") == 2


@pytest.mark.parametrize("text", ["[" * 200_000, "- " * 200_000, "a: &a [1]\nb: *a\n" + laughs(9)])
def test_a_compiled_file_that_stands_for_too_much_is_refused(text: str) -> None:
    """Nested without end, it would end the process by a signal; PyYAML has a limit too from 6.0.4 on."""
    with pytest.raises((UserError, yaml.YAMLError), match=r"nested too deeply|stands for more|nesting depth"):
        documents_of(text)


def test_what_is_within_the_limits_is_as_it_was_written() -> None:
    text = (
        "v: 2.10\nn: [010, 1e-4, yes, 12:30, ~, null, 'null', '~', '', ' y ', 0x10]\nb: &b {x: 1}\nc: {<<: *b, y: 2}\n"
    )
    root = node_of(text, "it")
    assert root is not None
    assert text_of(root) == {
        "v": "2.10",
        "n": ["010", "1e-4", "yes", "12:30", None, None, "null", "~", "", " y ", "0x10"],
        "b": {"x": "1"},
        "c": {"x": "1", "y": "2"},
    }
    assert data_of(root, "it") == yaml.safe_load(text)


def answer_all(folder: Path, texts: list[str]) -> None:
    """Every reader answers every text with at most 2 s of the processor and 200 MB more than before."""
    import google.cloud.aiplatform_v1.types.custom_job
    import google.protobuf.json_format  # noqa: F401 (what is imported is not counted)

    for number, text in enumerate(texts):
        for reader in READERS:
            place(reader, folder).write_bytes(text.encode("utf-8", "surrogateescape"))
            before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
            with suppress(UserError):
                read(reader, folder)
            seconds = time.process_time() - start
            more_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert seconds < 2, (number, reader, seconds)
            assert more_kb < 200_000, (number, reader, more_kb)


@pytest.mark.slow
def test_200_adversarial_files_are_answered_within_2_s_and_200_mb(tmp_path: Path) -> None:
    texts = [*SMALL_AND_LARGE.values(), *map(random_text, range(200 - len(SMALL_AND_LARGE)))]
    # In a process of its own: the memory of this one has had its peak.
    process = multiprocessing.get_context("spawn").Process(target=answer_all, args=(tmp_path, texts))
    process.start()
    process.join(timeout=500)
    assert process.exitcode == 0
