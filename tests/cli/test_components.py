"""`gpu-pipelines components`, and the pipelines that it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import command

from gpu_pipelines.component_interface.catalog import COMPONENTS
from gpu_pipelines.component_interface.examples import example
from gpu_pipelines.targets.own.pipeline import own_pipeline


def test_the_components_are_listed(tmp_path: Path) -> None:
    shown = command("components", "list", cwd=tmp_path)
    # What the width of the output wraps is indented.
    named = [line.split()[0] for line in shown.out.splitlines()[1:] if not line.startswith(" ")]
    assert named == list(COMPONENTS)
    listed = json.loads(command("components", "list", "--json", cwd=tmp_path).out)
    assert [each["name"] for each in listed] == list(COMPONENTS)


def test_a_component_is_shown_with_its_inputs_outputs_image_and_use(tmp_path: Path) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text("image: eu.example/steps:7\n")
    shown = command("components", "show", "evaluate-checkpoints", cwd=tmp_path).out
    assert "  dataset  (system.Dataset; must be given)\n" in shown
    assert "  collected  (list of system.Artifact; may be left out)\n" in shown
    assert "  average_last  (int; default 0)\n      Number of last checkpoints" in shown
    assert "  passed  (bool)\n      True if all gates" in shown
    assert "eu.example/steps:7" in shown
    assert shown.endswith(example("evaluate_checkpoints"))
    document = json.loads(command("components", "show", "evaluate_checkpoints", "--json", cwd=tmp_path).out)
    inputs = {each["name"]: each for each in document["inputs"]}
    assert (inputs["collected"]["list"], inputs["collected"]["optional"]) == (True, True)
    assert (inputs["gates"]["type"], inputs["gates"]["kind"], inputs["gates"]["default"]) == ("list", "parameter", [])
    assert document["outputs"][-1]["name"] == "passed"
    assert document["image"] == "eu.example/steps:7"
    wrong = command("components", "show", "train_mode", cwd=tmp_path)
    assert (wrong.status, "Did you mean 'train_model'?" in wrong.err) == (2, True)


@pytest.mark.parametrize("name", COMPONENTS)
@pytest.mark.filterwarnings("ignore:The default base_image:FutureWarning", "ignore:Compiling:UserWarning")
def test_each_example_is_a_pipeline_that_uses_its_component(name: str, tmp_path: Path) -> None:
    file = tmp_path / "my_pipeline.py"
    file.write_text(example(name))
    steps = own_pipeline(str(file)).steps
    assert name.replace("_", "-") in [step.component for step in steps]
    assert all(step.wish and step.wish.spec for step in steps if step.uses_accelerators)


def test_the_model_of_an_example_is_one_that_there_is(tmp_path: Path) -> None:
    (tmp_path / "my_pipeline.py").write_text(example("train_model"))
    done = command("run", "my_pipeline.py", "-p", "source=sample:digits", "--dry-run", cwd=tmp_path)
    assert done.status == 0, done.err
