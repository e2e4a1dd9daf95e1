"""Loops and branches of a pipeline of somebody's: on this machine they do what they do on Vertex AI."""

from __future__ import annotations

import builtins
import runpy
import subprocess
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import GPU_PIPELINES, gpu_pipelines, newest_run
from kfp import compiler, dsl
from kfp.local import config, logging_utils

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.local.runner.kfp_results import key_of_each_step
from gpu_pipelines.targets.local.runner.kfp_runner import as_on_platforms
from gpu_pipelines.targets.own.file import pipeline_in
from gpu_pipelines.targets.own.mistakes import meant

#: Each step adds a line to a file, with what it was given.
PIPELINE = """
from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Artifact, Input, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(text: str, value: int = 0, many: list = [], deep: dict = {}) -> str:
    with open("SAID", "a") as file:
        file.write(f"{text} {value!r} {many} {dict(sorted(deep.items()))}\\n")
    return text


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def lists() -> NamedTuple("Lists", [("numbers", list), ("settings", list), ("nothing", list)]):
    from collections import namedtuple

    settings = [{"called": "a", "rate": 1, "seed": None}, {"called": "it's b", "rate": 2}]
    return namedtuple("Lists", ["numbers", "settings", "nothing"])([1, 2], settings, [])


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def numbers() -> list:
    return [1, 2]


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def times(value: int) -> int:
    return 100 * value


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def make(made: Output[Artifact]):
    open(made.path, "w").write("made")
    made.metadata["version"] = 3


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def read(what: str, made: Input[Artifact]):
    with open("SAID", "a") as file:
        file.write(f"{what} {open(made.path).read()} {made.metadata['version']}\\n")


@dsl.pipeline(name="turns")
def turns(value: int = 3, text: str = "it's \\\\"):
    outer, given, made, listed = times(value=value), lists(), make(), numbers()
    with dsl.ParallelFor([10, 20]) as item:
        said = say(text=f"outer {outer.output} {value} {item}", value=outer.output)
        say(text="item", value=item)
        read(what=f"read by {item}", made=made.outputs["made"])
        with dsl.If(item > 10):
            say(text="more than ten", value=item)
            with dsl.If(outer.output == 300):
                say(text="nested", value=item)
    say(text="collected", many=dsl.Collected(said.output))
    with dsl.ParallelFor(given.outputs["numbers"]) as number:
        say(text="number", value=number)
    with dsl.ParallelFor(listed.output) as each:
        with dsl.If(each == 2):
            say(text="two", value=each)
    with dsl.ParallelFor(given.outputs["settings"]) as setting:
        say(text=setting.called, value=setting.rate, deep=setting)
        with dsl.If(setting.called == "a"):
            say(text="first", value=setting.rate)
    with dsl.ParallelFor(given.outputs["nothing"]) as none:
        never = say(text=none)
    say(text="no turn", many=dsl.Collected(never.output))
    word = say(text=text)
    with dsl.If(word.output == "good"):
        say(text="good")
    with dsl.Else():
        say(text="not good")
"""
SAID = r"""
a 1 [] {'called': 'a', 'rate': 1, 'seed': None}
collected 0 ['outer 300 3 10', 'outer 300 3 20'] {}
first 1 [] {}
it's \ 0 [] {}
it's b 2 [] {'called': "it's b", 'rate': 2}
item 10 [] {}
item 20 [] {}
more than ten 20 [] {}
nested 20 [] {}
no turn 0 [] {}
not good 0 [] {}
number 1 [] {}
number 2 [] {}
outer 300 3 10 300 [] {}
outer 300 3 20 300 [] {}
read by 10 made 3
read by 20 made 3
two 2 [] {}
"""


def _ran(tmp_path: Path, *options: str) -> list[str]:
    said = tmp_path / "said.txt"
    (tmp_path / "turns.py").write_text(PIPELINE.replace("SAID", str(said)))
    done = gpu_pipelines("run", "turns.py", *options, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    return sorted(said.read_text().splitlines())


def test_steps_in_turns_get_what_steps_outside_have_made_and_branches_are_decided_by_any_text(tmp_path: Path) -> None:
    assert _ran(tmp_path) == SAID.strip().splitlines()


@pytest.mark.slow
def test_the_emulator_of_vertex_ai_does_the_same(tmp_path: Path) -> None:
    assert _ran(tmp_path, "--target", "vertex", "--emulate") == SAID.strip().splitlines()


ARTIFACTS_OF_BRANCHES = """
from kfp import dsl
from kfp.dsl import Artifact, Input, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def make(text: str, made: Output[Artifact]):
    open(made.path, "w").write(text)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def read(made: Input[Artifact]) -> str:
    return open(made.path).read()


@dsl.pipeline(name="branches")
def branches(size: int) -> str:
    with dsl.If(size > 5):
        large = make(text="large")
    with dsl.Elif(size > 2):
        middle = make(text="middle")
    with dsl.Else():
        small = make(text="small")
    return read(made=dsl.OneOf(large.outputs["made"], middle.outputs["made"], small.outputs["made"])).output
"""


def test_an_artifact_is_that_of_the_branch_that_has_run(tmp_path: Path) -> None:
    (tmp_path / "branches.py").write_text(ARTIFACTS_OF_BRANCHES)
    done = gpu_pipelines("run", "branches.py", "-p", "size=4", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert "Output: middle" in done.out


UNREADABLE = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(text: str) -> str:
    return text


@dsl.pipeline(name="unreadable")
def unreadable(items: list = ["a"]):
    with dsl.ParallelFor(items) as item:
        with dsl.If(item == "it's"):
            say(text=item)
"""


@pytest.mark.parametrize("text", ["it's", "a\\b", "a\nb"])
def test_a_condition_that_kfp_writes_so_that_nothing_can_read_it_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "unreadable.py").write_text(UNREADABLE.replace('"it\'s"', repr(text)))
    done = gpu_pipelines("compile", "unreadable.py", "--target", "kubeflow", "-o", "unreadable.yaml", cwd=tmp_path)
    assert done.status == 2, done.out + done.err
    assert "no platform can read the condition of condition-2: " in done.err
    assert "Compare it in a step that returns true or false" in done.err


def test_a_kfp_whose_runner_is_built_in_another_way_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr("kfp.local.orchestrator.enhanced_dag_orchestrator._run_parallel_for_task")
    with (
        pytest.raises(UserError, match=r"kfp 2\.[0-9.]+ runs pipelines on this machine in another way"),
        as_on_platforms(tmp_path),
    ):
        pass


def test_a_kfp_whose_compiler_is_built_in_another_way_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr("kfp.compiler.compiler_utils.get_inputs_for_all_groups")
    (tmp_path / "own.py").write_text(UNREADABLE)
    with pytest.raises(UserError, match=r"kfp 2\.[0-9.]+ compiles loops and branches in another way than kfp 2\.17"):
        pipeline_in(str(tmp_path / "own.py"))


WAITING = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def wait(turn: int) -> int:
    import os
    import time

    print("waiting", flush=True)
    while not os.path.exists("HERE/go"):
        time.sleep(0.1)
    return turn


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def total(turns: list) -> int:
    return sum(turns)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def tell(status: dsl.PipelineTaskFinalStatus):
    with open("HERE/told.txt", "a") as file:
        file.write(status.state + "\\n")


@dsl.pipeline(name="waiting")
def waiting():
    with dsl.ExitHandler(tell()):
        with dsl.ParallelFor([1, 2, 3, 4]) as turn:
            waited = wait(turn=turn)
        total(turns=dsl.Collected(waited.output))
"""


@pytest.mark.slow
def test_an_interrupted_loop_begins_no_turn_any_more_and_is_continued(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING.replace("HERE", str(tmp_path)))
    request = [str(GPU_PIPELINES), "run", "waiting.py"]
    with subprocess.Popen(request, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout
        waiting = 0
        while waiting < 2:
            waiting += "waiting" in first.stdout.readline()
        first.terminate()
        try:
            assert first.wait(timeout=30) == 130
        finally:
            (tmp_path / "go").touch()
    steps = {step["name"]: step["status"] for step in newest_run(tmp_path)["steps"]}
    assert steps == {"wait": "interrupted", "wait #2": "interrupted"}
    for option in ("--resume", "--cache"):
        done = gpu_pipelines("run", "waiting.py", option, cwd=tmp_path)
        assert done.status == 0, done.out + done.err
    told = (tmp_path / "told.txt").read_text().split()
    assert told == ["SUCCEEDED", "SUCCEEDED"], "the end of each run is told, also where all else is reused"
    statuses = {step["name"]: step["status"] for step in newest_run(tmp_path)["steps"]}
    assert statuses["total"] == statuses["wait #4"] == "reused"


LOTS = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def draw(of: int, checkpoint_uri: str) -> int:
    import random

    with open("PLACES", "a") as file:
        file.write(checkpoint_uri + "\\n")
    return random.randrange(10**9)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def written(lots: list) -> str:
    return " ".join(str(int(each)) for each in lots)


@dsl.pipeline(name="lots")
def lots() -> str:
    with dsl.ParallelFor([1, 1, 1], parallelism=1) as of:
        drawn = draw(of=of, checkpoint_uri="lots/%TRAINING%")
    return written(lots=dsl.Collected(drawn.output)).output
"""


def test_equal_turns_of_a_loop_are_run_each_and_later_reused_each(tmp_path: Path) -> None:
    (tmp_path / "lots.py").write_text(LOTS)
    drawn = []
    for options, expected in (((), "succeeded"), ((), "succeeded"), (("--cache",), "reused")):
        done = gpu_pipelines("run", "lots.py", *options, cwd=tmp_path)
        assert done.status == 0, done.out + done.err
        record = newest_run(tmp_path)
        assert {step["status"] for step in record["steps"]} == {expected}
        drawn.append(record["outputs"]["Output"].split())
    assert len(set(drawn[0])) == len(set(drawn[1])) == 3, "each turn draws"
    assert not set(drawn[0]) & set(drawn[1])
    assert drawn[2] == drawn[1], "the results of the run before"
    places = (tmp_path / "PLACES").read_text().split()
    assert places == ["lots/%TRAINING%", "lots/%TRAINING%-2", "lots/%TRAINING%-3"] * 2, "none continues another"


@pytest.mark.parametrize(
    "placeholder",
    [
        dsl.WORKSPACE_PATH_PLACEHOLDER,
        dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
        dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
    ],
)
def test_a_step_that_is_told_its_run_is_taken_for_done_in_no_other_run(
    placeholder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step found nothing in the workspace, or had the name of the run before."""
    keys = []
    for folder in ("runs/1", "runs/2"):
        monkeypatch.setattr(config.LocalExecutionConfig, "instance", SimpleNamespace(workspace_root=folder))
        key_of = key_of_each_step(lambda **told: "key")
        keys += [
            key_of(arguments={"path": f"{placeholder}/rows"}),
            key_of(arguments={"path": "rows", "checkpoint_uri": placeholder}),
        ]
    assert keys[1] == keys[3] == "key"
    assert len({*keys[:3]}) == 3


FIELDS = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(text: str = "", rate: int = 0, item: dict = {}):
    with open(SAID, "a") as file:
        file.write(f"{text} {rate} {item}\\n")


@dsl.pipeline(name="fields")
def fields():
    with dsl.ParallelFor([{"rate": 1}, {"rate": 2}]) as item:
        say(rate=item.rate, item=item)
        say(text=f"rate {item.rate}")
        say(item={"its": item.rate})
"""


def test_a_step_gets_the_field_of_an_item_in_a_text_or_a_dictionary_though_kfp_loses_it(tmp_path: Path) -> None:
    (tmp_path / "fields.py").write_text(FIELDS.replace("SAID", repr(str(tmp_path / "SAID"))))
    done = gpu_pipelines("run", "fields.py", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    said = sorted((tmp_path / "SAID").read_text().splitlines())
    assert said == [
        " 0 {'its': 1}",
        " 0 {'its': 2}",
        " 1 {'rate': 1}",
        " 2 {'rate': 2}",
        "rate 1 0 {}",
        "rate 2 0 {}",
    ]


IN_A_BRANCH = """
        with dsl.If(wanted == True):
            say(text=f"rate {item.rate}")
"""


def test_a_field_that_kfp_has_lost_in_a_compiled_file_is_refused(tmp_path: Path) -> None:
    before = FIELDS[: FIELDS.index("        say(rate=item.rate")].replace("fields()", "fields(wanted: bool)")
    (tmp_path / "fields.py").write_text(before + IN_A_BRANCH)
    compiler.Compiler().compile(runpy.run_path(str(tmp_path / "fields.py"))["fields"], str(tmp_path / "fields.yaml"))
    done = gpu_pipelines("compile", "fields.yaml", "--target", "vertex", "-o", "placed.yaml", cwd=tmp_path)
    assert done.status == 2, done.out + done.err
    assert "KFP loses 'rate' of a loop's item for " in done.err


IN_GROUPS = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def wanted() -> bool:
    return True


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(text: str):
    with open(SAID, "a") as file:
        file.write(text + "\\n")


@dsl.pipeline(name="in-groups")
def in_groups():
    with dsl.ExitHandler(say(text="done")):
        with dsl.If(wanted().output == True):
            with dsl.ParallelFor([{"title": "a", "rate": "1"}, {"title": "b", "rate": "2"}]) as item:
                say(text=item.title)
                say(text=item.rate)
"""


def test_a_loop_over_dictionaries_in_a_branch_and_an_exit_handler_runs_though_kfp_asks_for_its_fields_outside(
    tmp_path: Path,
) -> None:
    (tmp_path / "in_groups.py").write_text(IN_GROUPS.replace("SAID", repr(str(tmp_path / "SAID"))))
    done = gpu_pipelines("run", "in_groups.py", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert sorted((tmp_path / "SAID").read_text().split()) == ["1", "2", "a", "b", "done"]
    compiled = gpu_pipelines("compile", "in_groups.py", "--target", "vertex", "-o", "in_groups.yaml", cwd=tmp_path)
    assert compiled.status == 0, compiled.err
    assert "-subvar-" not in (tmp_path / "in_groups.yaml").read_text(), "nothing that Vertex AI would look for in vain"


GROUPS = """
from typing import List

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(text: str, numbers: List[int] = []) -> str:
    with open("SAID", "a") as file:
        file.write(f"{text} {numbers}\\n")
    return text


@dsl.pipeline(name="groups")
def groups(numbers: List[int] = [1, 2], wanted: bool = True) -> str:
    with dsl.ParallelFor(numbers) as number:
        with dsl.If(number == 1):
            say(text="one")
        with dsl.Elif(number == 2):
            say(text="two")
    after = say(text="after the loop")
    with dsl.If(wanted == False):
        say(text="unwanted")
    with dsl.Elif(wanted == True):
        with dsl.ParallelFor(numbers) as number:
            say(text=f"wanted {number}")
            with dsl.ParallelFor(["a"]) as letter:
                say(text=letter, numbers=numbers)
    with dsl.Else():
        say(text="neither")
    with dsl.ParallelFor([{"title": "b", "rate": 1, "sizes": []}, {"title": "c", "rate": 2, "sizes": [3]}]) as item:
        with dsl.If(wanted == True):
            say(text=item.title)
            with dsl.If(item.rate == 2):
                say(text=f"fast {item.title}", numbers=item.sizes)
    return after.output
"""
SAID_IN_GROUPS = """
a [1, 2]
a [1, 2]
after the loop []
b []
c []
fast c [3]
one []
two []
wanted 1 []
wanted 2 []
"""


@pytest.mark.parametrize("options", [(), pytest.param(("--target", "vertex", "--emulate"), marks=pytest.mark.slow)])
def test_loops_and_branches_run_as_they_are_written_though_kfp_compiles_them_otherwise(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """Without mends, KFP puts what follows the first loop into it, and has no inputs for four of the steps."""
    said = tmp_path / "said.txt"
    (tmp_path / "groups.py").write_text(GROUPS.replace("SAID", str(said)))
    done = gpu_pipelines("run", "groups.py", *options, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert sorted(said.read_text().splitlines()) == SAID_IN_GROUPS.strip().splitlines()


CONFUSED = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def total(numbers: list) -> int:
    return sum(numbers)


@dsl.pipeline(name="within")
def within(numbers: list, outer: int):
    with dsl.ParallelFor(numbers) as inner:
        total(numbers=[outer, inner])


@dsl.pipeline(name="fixed")
def fixed():
    with dsl.ParallelFor([1, 2]) as inner:
        total(numbers=[inner])


@dsl.pipeline(name="confused")
def confused(numbers: list, wanted: bool = True):
    with dsl.ParallelFor([1, 2]):
        fixed()
    with dsl.ParallelFor(numbers) as outer:
        GIVEN
"""


def test_a_loop_within_a_loop_over_the_same_list_is_refused_but_in_a_pipeline_of_its_own(tmp_path: Path) -> None:
    """KFP names the items of both alike: steps were given the inner item for both."""
    for given, status in (
        ("with dsl.ParallelFor(numbers) as inner: total(numbers=[outer, inner])", 2),
        ("with dsl.If(wanted == True), dsl.ParallelFor(numbers) as inner: total(numbers=[inner])", 2),
        ("within(numbers=numbers, outer=outer)", 0),
    ):
        (tmp_path / "confused.py").write_text(CONFUSED.replace("GIVEN", given))
        request = ("compile", "confused.py:confused", "--target", "vertex", "-o", "confused.yaml")
        done = gpu_pipelines(*request, cwd=tmp_path)
        assert done.status == status, done.out + done.err
        assert ("is a loop within a loop over the same list" in done.err) is bool(status)


def test_an_input_that_kfp_loses_when_it_compiles_is_told_with_the_way_out() -> None:
    """As of pipelines within pipelines whose loops have one name."""
    lost = AssertionError("component_input_parameter: pipelinechannel--add-Output not found. All inputs: parameters {")
    assert "Put that into a pipeline of its own (@dsl.pipeline)" in meant(lost)
    assert meant(AssertionError("of a user's")) == ""


def test_steps_that_run_at_once_leave_no_print_within_a_print(tmp_path: Path) -> None:
    """KFP indents what a step prints. Left out of turn, each such print doubled all later ones."""
    with as_on_platforms(tmp_path):
        before = builtins.print
        first, second = logging_utils.indented_print(), logging_utils.indented_print()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert builtins.print is before


OF_THE_RUN = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(name: str, resource: str, created: str, scheduled: str, turn: int = 0):
    with open(SAID, "a") as file:
        file.write(f"{name} {resource} {created} {scheduled}\\n")


NAMES = {
    "name": dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
    "resource": dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER,
    "created": dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
    "scheduled": dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
}


@dsl.pipeline(name="of-the-run")
def of_the_run():
    say(**NAMES)
    with dsl.ParallelFor([1, 2]) as turn:
        say(turn=turn, **NAMES)
"""


@pytest.mark.parametrize("place", [(), ("--target", "vertex", "--emulate")])
def test_the_name_and_the_time_of_the_run_are_the_same_in_all_turns(place: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "of_the_run.py").write_text(OF_THE_RUN.replace("SAID", repr(str(tmp_path / "SAID"))))
    done = gpu_pipelines("run", "of_the_run.py", *place, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    first, *others = (tmp_path / "SAID").read_text().splitlines()
    assert others == [first] * 2
    name, resource, *times = first.split()
    assert resource.endswith(name)
    for time in times:
        assert datetime.fromisoformat(time.replace("Z", "+00:00")).tzinfo


COLLECTED = """
from typing import List

from kfp import dsl
from kfp.dsl import Dataset, Input, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def make(text: str, made: Output[Dataset]) -> str:
    open(made.path, "w").write(text)
    return text


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(texts: list, made: Input[List[Dataset]]):
    with open("SAID", "w") as file:
        file.write(f"{texts} {[open(each.path).read() for each in made]}")


@dsl.pipeline
def collected():
    with dsl.ParallelFor(["a", "b"]) as letter:
        with dsl.ParallelFor([1, 2]) as turn:
            made = make(text=f"{letter}{turn}")
        with dsl.If(letter == "b"):
            of_branch = make(text="branch")
    say(texts=dsl.Collected(of_branch.outputs["Output"]), made=dsl.Collected(made.outputs["made"]))
"""


@pytest.mark.parametrize("place", [(), pytest.param(("--target", "vertex", "--emulate"), marks=pytest.mark.slow)])
def test_what_loops_in_loops_and_branches_in_loops_have_made_is_collected(
    place: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "collected.py").write_text(COLLECTED.replace("SAID", str(tmp_path / "SAID")))
    done = gpu_pipelines("run", "collected.py", *place, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert (tmp_path / "SAID").read_text() == "['branch'] ['a1', 'a2', 'b1', 'b2']"
