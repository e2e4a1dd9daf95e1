"""Pipelines in pipelines, whose steps may have names alike: each has its own code, machine and place."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import gpu_pipelines, newest_run

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.local.own import own_here
from gpu_pipelines.targets.local.target import LocalTarget
from gpu_pipelines.targets.own.file import place_of
from gpu_pipelines.targets.own.pipeline import own_pipeline

WRITING = """
from kfp import dsl
from kfp.dsl import Dataset, Input, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def write(text: str, written: Output[Dataset]):
    open(written.path, "w").write(text)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def read(written: Input[Dataset]) -> str:
    return open(written.path).read()


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def joined(one: str, two: str, three: str, four: str) -> str:
    return " ".join([one, two, three, four])


@dsl.pipeline
def pair(text: str) -> str:
    return read(written=write(text=text).outputs["written"]).output


def another():
    @dsl.component(base_image="python:3.11", install_kfp_package=False)
    def read(text: str) -> str:
        return text.upper()

    return read


upper = another()


@dsl.pipeline
def other(text: str) -> str:
    return upper(text=text).output


def namesake():
    @dsl.component(base_image="python:3.11", install_kfp_package=False)
    def alike(text: str) -> str:
        return text + "!"

    return alike


inside = namesake()


@dsl.pipeline
def alike(text: str) -> str:
    return inside(text=text).output


@dsl.pipeline(name="whole")
def whole() -> str:
    one, two, three, four = pair(text="one"), pair(text="two"), other(text="three"), alike(text="four")
    return joined(one=one.output, two=two.output, three=three.output, four=four.output).output
"""


@pytest.mark.parametrize("place", [(), pytest.param(("--target", "vertex", "--emulate"), marks=pytest.mark.slow)])
def test_steps_of_one_name_run_their_own_code_in_their_own_place(place: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(WRITING)
    done = gpu_pipelines("run", "whole.py:whole", *place, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    written = [file.read_text() for file in tmp_path.rglob("executor_output.json")]
    assert any('"one two THREE four!"' in text for text in written), written
    if not place:
        names = {step["name"] for step in newest_run(tmp_path)["steps"]}
        assert names == {"alike", "joined", "read", "read-2", "read-3", "write", "write-2"}


ARTIFACTS_ALONE = """
from typing import List

from kfp import dsl
from kfp.dsl import Dataset, Input, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def write(text: str, written: Output[Dataset]):
    open(written.path, "w").write(text)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def read(written: Input[Dataset], turn: int):
    with open("SAID", "a") as file:
        file.write(f"{open(written.path).read()} {turn}\\n")


@dsl.pipeline
def several(texts: List[str]) -> List[Dataset]:
    with dsl.ParallelFor(texts) as text:
        written = write(text=text)
    return dsl.Collected(written.outputs["written"])


@dsl.pipeline
def inner(one: Input[Dataset], many: Input[List[Dataset]]):
    read(written=one, turn=0)
    with dsl.ParallelFor(many) as each:
        read(written=each, turn=1)


@dsl.pipeline
def around(many: Input[List[Dataset]], one: Input[Dataset], other: Input[Dataset]):
    inner(one=other, many=many)


@dsl.pipeline(name="alone")
def alone():
    many = several(texts=["a", "b"])
    around(many=many.output, one=write(text="c").outputs["written"], other=write(text="d").outputs["written"])
"""


@pytest.mark.parametrize("place", [(), pytest.param(("--target", "vertex", "--emulate"), marks=pytest.mark.slow)])
def test_a_pipeline_that_gets_artifacts_alone_gets_its_own_and_loops_go_over_lists_of_them(
    place: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "alone.py").write_text(ARTIFACTS_ALONE.replace("SAID", str(tmp_path / "SAID")))
    done = gpu_pipelines("run", "alone.py:alone", *place, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert sorted((tmp_path / "SAID").read_text().splitlines()) == ["a 1", "b 1", "d 0"]


TRAINING = """
from kfp import dsl
from kfp.dsl import Dataset, Input

from gpu_pipelines.components import accelerate, prepare_data, train_model


@dsl.pipeline
def large(data: Input[Dataset]):
    accelerate(train_model(dataset=data, max_steps=20), "h100:8")


@dsl.pipeline
def small(data: Input[Dataset]):
    accelerate(train_model(dataset=data, max_steps=10), "l4:1")


@dsl.pipeline(name="sizes")
def sizes():
    data = prepare_data(source="sample:digits").outputs["dataset"]
    large(data=data)
    small(data=data)
"""


SEVERAL = """
@dsl.pipeline(name="sizes")
def sizes(flag: bool = True):
    data = prepare_data(source="sample:digits").outputs["dataset"]
    with dsl.If(flag == True):
        accelerate(train_model(dataset=data, max_steps=3), "l4:1")
    with dsl.Else():
        accelerate(train_model(dataset=data, max_steps=4), "l4:1")
    accelerate(train_model(dataset=data, max_steps=5), "l4:1")
    large(data=data)
    small(data=data)
"""


CALLED_LIKE_ITS_STEP = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def double(number: int) -> int:
    return 2 * number


@dsl.pipeline(name="Double")
def pipeline(number: int, text: str):
    double(number=double(number=number).output)
"""


def test_a_pipeline_that_is_called_like_a_step_of_it_runs_all_of_them_though_kfp_takes_it_for_the_step(
    tmp_path: Path,
) -> None:
    (tmp_path / "double.py").write_text(CALLED_LIKE_ITS_STEP)
    own = own_pipeline(str(tmp_path / "double.py"))
    _, component = own_here(own, LocalTarget(), {}, {}, containers=False)
    assert component.component_spec.implementation.graph
    assert list(component.component_spec.inputs) == ["number", "text"]


SMALL_NUMBERS = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def learn(rate: float = 1e-05, more: dict = {"decay": 1e-06}):
    print("done 🎉")


@dsl.pipeline
def small_numbers():
    learn()
"""


def test_small_numbers_stay_numbers_and_emoji_of_a_step_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL_NUMBERS)
    own = own_pipeline(str(tmp_path / "small.py"))
    (tmp_path / "small.json").write_text(json.dumps(own.spec))
    assert own_pipeline(str(tmp_path / "small.json")).spec == own.spec
    _, component = own_here(own, LocalTarget(), {}, {}, containers=False)
    spec = component.pipeline_spec
    inputs = spec.components["comp-learn"].input_definitions.parameters
    assert inputs["rate"].default_value.number_value == 1e-05
    assert inputs["more"].default_value.struct_value["decay"] == 1e-06
    (executor,) = spec.deployment_spec["executors"].values()
    assert "🎉" in executor["container"]["command"][-1]


def test_each_training_in_a_branch_beside_those_of_other_pipelines_has_checkpoints_of_its_own(tmp_path: Path) -> None:
    """KFP calls their components `train-model`, `train-model-2`, `train-model-2-2` and so on."""
    (spec,) = _compiled(tmp_path, "vertex", text=TRAINING.rpartition("@dsl.pipeline")[0] + SEVERAL)
    tasks = [task for part in (spec["root"], *spec["components"].values()) for task in _tasks_of(part)]
    trained = [task["inputs"]["parameters"] for name, task in tasks if name.startswith("train-model")]
    assert len(trained) == 5
    places = {each["checkpoint_uri"]["runtimeValue"]["constant"] for each in trained}
    assert len(places) == 5


def _tasks_of(part: Any) -> list[tuple[str, Any]]:
    return list(part.get("dag", {}).get("tasks", {}).items())


def _compiled(folder: Path, target: str, *options: str, text: str = TRAINING) -> list[Any]:
    (folder / "sizes.py").write_text(text)
    done = gpu_pipelines("compile", "sizes.py:sizes", "--target", target, *options, "-o", "sizes.yaml", cwd=folder)
    assert done.status == 0, done.err
    return list(yaml.safe_load_all((folder / "sizes.yaml").read_text()))


def _trainings(spec: Any) -> Iterator[tuple[int, Any]]:
    """The steps of the training of each pipeline, and its component."""
    for pipeline in ("large", "small"):
        (task,) = spec["components"][f"comp-{pipeline}"]["dag"]["tasks"].values()
        steps = task["inputs"]["parameters"]["max_steps"]["runtimeValue"]["constant"]
        yield steps, spec["components"][task["componentRef"]["name"]]


def test_trainings_of_two_pipelines_run_on_the_machines_that_each_was_given(tmp_path: Path) -> None:
    (spec,) = _compiled(tmp_path, "vertex")
    pools = {
        steps: component["inputDefinitions"]["parameters"]["worker_pool_specs"]["defaultValue"][0]
        for steps, component in _trainings(spec)
    }
    machines = {steps: pool["machine_spec"]["machine_type"] for steps, pool in pools.items()}
    assert machines == {20: "a3-highgpu-8g", 10: "g2-standard-8"}


def test_so_they_do_in_a_cluster_with_the_memory_that_each_was_given(tmp_path: Path) -> None:
    spec, platform = _compiled(tmp_path, "kubeflow")
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    of_steps = {steps: executors[component["executorLabel"]] for steps, component in _trainings(spec)}
    nodes = {steps: each["nodeSelector"]["labels"] for steps, each in of_steps.items()}
    label = "cloud.google.com/gke-accelerator"
    assert {steps: each[label] for steps, each in nodes.items()} == {20: "nvidia-h100-80gb", 10: "nvidia-l4"}
    assert [len(each["emptyDirMounts"]) for each in of_steps.values()] == [1, 1]


OUTPUTS_IN_CONSTANTS = r"""
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def word() -> str:
    return 'C:\\new "it"'


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def number(value: int) -> int:
    return value


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(text: str, many: list, deep: dict) -> str:
    with open("SAID", "a") as file:
        file.write(text + f" {many} {dict(sorted(deep.items()))}\n")
    return text


@dsl.pipeline
def inside(text: str, many: list, deep: dict):
    say(text=text, many=many, deep=deep)


@dsl.pipeline(name="told")
def told(given: int = 4):
    said, three = word(), number(value=3)
    say(text=f"one {said.output}", many=[said.output, three.output, 7], deep={"n": three.output, "in": {"m": given}})
    inside(text=f"two {three.output}", many=[given, f"<{given}>"], deep={"word": said.output})
    say(text=f"{three.output}", many=[], deep={})
    with dsl.ParallelFor([1, 2]) as turn:
        inside(text=f"three {turn} {given}", many=[turn, three.output], deep={"turn": turn})
"""
TOLD = r"""
3 [] {}
one C:\new "it" ['C:\\new "it"', 3, 7] {'in': {'m': 4}, 'n': 3}
three 1 4 [1, 3] {'turn': 1}
three 2 4 [2, 3] {'turn': 2}
two 3 [4, '<4>'] {'word': 'C:\\new "it"'}
"""


@pytest.mark.parametrize("place", [(), pytest.param(("--target", "vertex", "--emulate"), marks=pytest.mark.slow)])
def test_outputs_in_texts_lists_and_dictionaries_are_what_they_were(place: tuple[str, ...], tmp_path: Path) -> None:
    text = OUTPUTS_IN_CONSTANTS.replace('"SAID"', repr(str(tmp_path / "SAID")))
    (tmp_path / "told.py").write_text(text)
    done = gpu_pipelines("run", "told.py:told", *place, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert sorted((tmp_path / "SAID").read_text().splitlines()) == TOLD.strip().splitlines()


ONE_PLACED = """
from kfp import dsl

from gpu_pipelines.components import accelerate


def another(word):
    @dsl.component(base_image=f"example.org/{word}:1", install_kfp_package=False)
    def embed(number: int) -> int:
        return number

    return embed


here, there = another("here"), another("there")


@dsl.pipeline
def inner():
    accelerate(there(number=2), "l4:1")


@dsl.pipeline(name="one-placed")
def one_placed():
    inner()
    here(number=1)
"""


def test_a_step_that_was_given_no_accelerator_stays_what_it_was_beside_one_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "placed.py").write_text(ONE_PLACED)
    options = ("--target", "kubeflow", "--image", "example.org/steps:1", "-o", "placed.yaml")
    done = gpu_pipelines("compile", "placed.py:one_placed", *options, cwd=tmp_path)
    assert done.status == 0, done.err
    spec, platform = yaml.safe_load_all((tmp_path / "placed.yaml").read_text())
    executors = spec["deploymentSpec"]["executors"]
    of_cluster = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for part, image, has_gpu in ((spec["root"], "here", False), (spec["components"]["comp-inner"], "there", True)):
        (task,) = [each for name, each in part["dag"]["tasks"].items() if name.startswith("embed")]
        label = spec["components"][task["componentRef"]["name"]]["executorLabel"]
        container = executors[label]["container"]
        assert container["image"] == f"example.org/{image}:1"
        assert ("accelerator" in container.get("resources", {})) == has_gpu
        assert ("nodeSelector" in of_cluster.get(label, {})) == has_gpu


BRANCHES = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(text: str):
    print("said", text)


@dsl.pipeline
def within(size: str):
    with dsl.If(size == "1"):
        say(text="small")
    with dsl.Else():
        say(text="large")


@dsl.pipeline
def by_day(day: str):
    with dsl.If(day == "Monday"):
        say(text="early")
    with dsl.Else():
        say(text="late")


@dsl.pipeline(name="mixed-up")
def mixed_up(day: str = "Friday"):
    within(size="1")
    with dsl.If(day == "Monday"):
        say(text="early")
    with dsl.Else():
        say(text="late")


@dsl.pipeline(name="apart")
def apart(day: str = "Friday"):
    within(size="1")
    by_day(day=day)
"""


def test_branches_of_a_pipeline_and_of_one_within_it_are_not_mixed_up_as_kfp_does(tmp_path: Path) -> None:
    (tmp_path / "branches.py").write_text(BRANCHES)
    done = gpu_pipelines("run", "branches.py:mixed_up", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "said small" in done.out
    assert "said late" in done.out


def test_branches_that_kfp_has_mixed_up_are_refused_and_the_remedy_works(tmp_path: Path) -> None:
    (tmp_path / "branches.py").write_text(BRANCHES)
    module = runpy.run_path(str(tmp_path / "branches.py"))
    with place_of(module["mixed_up"]) as place, pytest.raises(UserError, match="has no step, as KFP compiles it"):
        own_pipeline(place)
    with place_of(module["apart"]) as place:
        assert own_pipeline(place).steps
