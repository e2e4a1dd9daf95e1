"""`run --resume JOB` on the emulator: what is done is taken over, what is left runs, or it is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from command_line import command as command_here
from conftest import newest_run
from kfp_api.server import serving
from sample_runs import ended, outputs, run_spec, states

from gpu_pipelines.targets.runs.continued import gone_on
from gpu_pipelines.targets.runs.earlier import EarlierRun, Made

if TYPE_CHECKING:
    from conftest import Finished

    from gpu_pipelines.emulator.vertex_api import VertexApi

PROJECT_FILE = "pipeline_root: gs://example-bucket/runs\n"
#: Each step says its name; the third fails unless it is told otherwise.
STEPS = """
from kfp import dsl


@dsl.container_component
def first(text: str, made: dsl.OutputPath(str), data: dsl.Output[dsl.Dataset]):
    return dsl.ContainerSpec(
        "any", ["sh", "-c"], ['echo first; printf %s "$0" > "$1"; printf data-%s "$0" > "$2"', text, made, data.path]
    )


@dsl.container_component
def second(text: str, data: dsl.Input[dsl.Dataset], more: dsl.Output[dsl.Dataset]):
    return dsl.ContainerSpec(
        "any", ["sh", "-c"], ['echo second; cat "$1" > "$2"; printf %s "+$0" >> "$2"', text, data.path, more.path]
    )


@dsl.container_component
def third(mode: str, more: dsl.Input[dsl.Dataset], made: dsl.OutputPath(str)):
    return dsl.ContainerSpec(
        "any", ["sh", "-c"], ['echo third; [ "$0" != bad ] && cat "$1" > "$2"', mode, more.path, made]
    )


@dsl.container_component
def fourth(one: str, three: str):
    return dsl.ContainerSpec("any", ["sh", "-c"], ['echo "fourth: $0 $1"', one, three])


@dsl.container_component
def status(told: dsl.PipelineTaskFinalStatus):
    return dsl.ContainerSpec("any", ["echo", "status"], [told])
"""
FOUR = f"""{STEPS}

@dsl.pipeline(name="four")
def four(text: str = "a", mode: str = "bad"):
    one = first(text=text)
    two = second(text="x", data=one.outputs["data"])
    three = third(mode=mode, more=two.outputs["more"])
    fourth(one=one.outputs["made"], three=three.outputs["made"])
"""


def command(api: VertexApi, folder: Path, *arguments: str) -> Finished:
    """Runs a command in this process; the first makes the pipeline's file and that of the project."""
    if not (folder / "four.py").exists():
        (folder / "four.py").write_text(FOUR)
    if not (folder / "gpu-pipelines.yaml").exists():
        (folder / "gpu-pipelines.yaml").write_text(PROJECT_FILE)
    return command_here(*arguments, cwd=folder, environment=api.environment())


def run(api: VertexApi, folder: Path, *arguments: str) -> Any:
    """Submits a run on Vertex AI and waits for its end."""
    before = set(api.state.pipeline_jobs.jobs)
    done = command(api, folder, "run", *arguments, "--target", "vertex")
    assert done.status == 0, done.err
    (name,) = set(api.state.pipeline_jobs.jobs) - before
    return ended(api, name)


def said(api: VertexApi) -> list[str]:
    return [line for line in api.state.logs.messages() if line.split(":")[0] in ("first", "second", "third", "fourth")]


def test_a_run_goes_on_at_the_step_that_failed(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    failed = run(vertex_emulator, tmp_path, "four.py")
    assert states(failed)["third"] == "FAILED"
    assert said(vertex_emulator) == ["first", "second", "third"]
    gone_on = run(vertex_emulator, tmp_path, "--resume", failed.name, "-p", "mode=good")
    assert gone_on.state.name == "PIPELINE_STATE_SUCCEEDED", gone_on.error.message
    assert said(vertex_emulator)[3:] == ["third", "fourth: a data-a+x"], "as the undisturbed run has it, and no more"
    assert gone_on.name != failed.name
    assert failed.name in dict(gone_on.pipeline_spec["pipelineInfo"])["description"]
    undisturbed = run(vertex_emulator, tmp_path, "four.py", "-p", "mode=good", "-p", "text=a")
    assert outputs(gone_on, "third") == outputs(undisturbed, "third")
    assert not {"first", "second"} & set(states(gone_on))


def test_what_is_told_before_a_run_goes_on(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    failed = run(vertex_emulator, tmp_path, "four.py")
    name = failed.name.rpartition("/")[2]
    shown = command(vertex_emulator, tmp_path, "run", "--resume", name, "--target", "vertex", "--dry-run")
    assert shown.status == 0, shown.err
    assert f"goes on from {failed.name}, which was failed" in shown.err
    assert "takes over: first, second; runs: third, fourth" in shown.err


def test_a_run_that_went_on_and_failed_again_is_gone_on_from(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    failed = run(vertex_emulator, tmp_path, "four.py")
    again = run(vertex_emulator, tmp_path, "--resume", failed.name)
    assert states(again)["third"] == "FAILED"
    # With its file it is compiled anew, so that what the first has made has to be found through the second.
    last = run(vertex_emulator, tmp_path, "four.py", "--resume", again.name, "-p", "mode=good")
    assert said(vertex_emulator) == ["first", "second", "third", "third", "third", "fourth: a data-a+x"]
    assert last.state.name == "PIPELINE_STATE_SUCCEEDED"
    assert again.name in dict(last.pipeline_spec["pipelineInfo"])["description"]


def test_a_run_goes_on_in_another_region_with_the_artifacts_that_it_had(
    vertex_emulator: VertexApi, tmp_path: Path
) -> None:
    failed = run(vertex_emulator, tmp_path, "four.py")
    given = ("--region", "europe-west4", "-p", "mode=good")
    there = run(vertex_emulator, tmp_path, "--resume", failed.name, *given)
    assert "/locations/europe-west4/" in there.name
    assert there.state.name == "PIPELINE_STATE_SUCCEEDED"
    assert said(vertex_emulator)[-2:] == ["third", "fourth: a data-a+x"]
    uris = {
        each.uri for task in there.job_detail.task_details for key in task.inputs for each in task.inputs[key].artifacts
    }
    assert uris == {f"gs://example-bucket/runs/{failed.name.rpartition('/')[2]}/second/more"}


def test_the_lineage_goes_through_both_runs(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    failed = run(vertex_emulator, tmp_path, "four.py")
    run(vertex_emulator, tmp_path, "--resume", failed.name, "-p", "mode=good")
    held = vertex_emulator.state.metadata.artifacts.held.values()
    assert len([each for each in held if each.uri.endswith("/second/more")]) == 1, "one node for both runs"


CHANGED = FOUR.replace('["echo first', '["echo  first').replace("echo second", "echo other")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("-p", "text=b"), "text is of first, which is done in"),
        (
            ("changed.py",),
            "is a run of another version of four: second of it is done, but missing or changed in this one",
        ),
        (("other.py",), "is a run of four, not of other"),
        (("-p", "wrong=1"), "There is no parameter 'wrong'"),
        (("--target", "compute_engine"), "Compute Engine cannot continue a run of another target"),
    ],
)
def test_what_would_not_be_the_same_run_is_refused(
    arguments: tuple[str, ...], why: str, vertex_emulator: VertexApi, tmp_path: Path
) -> None:
    failed = run(vertex_emulator, tmp_path, "four.py")
    (tmp_path / "changed.py").write_text(CHANGED)
    (tmp_path / "other.py").write_text(FOUR.replace('name="four"', 'name="other"'))
    done = command(vertex_emulator, tmp_path, "run", "--target", "vertex", *arguments, "--resume", failed.name)
    assert done.status == 2
    assert why in done.err
    assert len(vertex_emulator.state.pipeline_jobs.jobs) == 1


def test_runs_that_cannot_be_gone_on_from_are_refused(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    good = run(vertex_emulator, tmp_path, "four.py", "-p", "mode=good")
    jobs = vertex_emulator.state.pipeline_jobs
    for name, why in (
        (good.name, "has succeeded, so there is nothing to resume"),
        ("four-20260101-000000-0000", "four-20260101-000000-0000"),
        ("latest", "needs the name of the run"),
        (f"{good.name}/x", "is not the id of a run"),
    ):
        done = command(vertex_emulator, tmp_path, "run", "--resume", name, "--target", "vertex")
        assert (done.status, why in done.err) == (2, True), done.err
    good.state = type(good.state).PIPELINE_STATE_RUNNING
    jobs.keep(good)
    done = command(vertex_emulator, tmp_path, "run", "--resume", good.name, "--target", "vertex")
    assert "has not ended: it is running" in done.err
    good.state = type(good.state).PIPELINE_STATE_FAILED
    jobs.keep(good)
    bucket = vertex_emulator.folder / "gcs/example-bucket/runs" / good.name.rpartition("/")[2]
    (bucket / "second/more").unlink()
    details = {each.task_name: each for each in good.job_detail.task_details}
    details["third"].state = type(details["third"].state).FAILED
    jobs.keep(good)
    done = command(vertex_emulator, tmp_path, "run", "--resume", good.name, "--target", "vertex")
    assert "more of second was in gs://" in done.err
    assert "which no longer exists" in done.err


def test_a_run_goes_on_here_and_is_recorded_so(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    failed = run(vertex_emulator, tmp_path, "four.py")
    here = ("run", "four.py", "--no-containers", "--resume")
    # By its id alone: project and region are those of the settings.
    (tmp_path / "gpu-pipelines.yaml").write_text(f"{PROJECT_FILE}region: us-central1\n")
    once = command(vertex_emulator, tmp_path, *here, failed.name.rpartition("/")[2])
    assert once.status == 1, once.err
    assert newest_run(tmp_path)["steps"][-1]["name"] == "third"
    # A run here that took its results from elsewhere has them still when it goes on.
    done = command(vertex_emulator, tmp_path, *here, newest_run(tmp_path)["run_id"], "-p", "mode=good")
    assert done.status == 0, done.err
    assert "fourth: a data-a+x" in done.out
    record = newest_run(tmp_path)
    assert {step["name"]: step["status"] for step in record["steps"]} == {
        "first": "reused",
        "second": "reused",
        "third": "succeeded",
        "fourth": "succeeded",
    }
    assert record["dependencies"]["third"] == ["second"]
    assert f"goes on from {record['resumes']}" in command_here("runs", "show", "latest", cwd=tmp_path).out
    page = (record["directory"] / "report.html").read_text()
    assert f"It goes on from {record['resumes']}, with the results of first, second." in page


def test_a_run_goes_on_here_and_back(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    failed = run(vertex_emulator, tmp_path, "four.py")
    here = command(vertex_emulator, tmp_path, "run", "four.py", "--resume", failed.name, "--no-containers")
    assert here.status == 1, here.err
    record = newest_run(tmp_path)
    back = run(vertex_emulator, tmp_path, "four.py", "--resume", record["run_id"], "-p", "mode=good")
    assert back.state.name == "PIPELINE_STATE_SUCCEEDED", back.error.message
    assert said(vertex_emulator) == ["first", "second", "third", "third", "fourth: a data-a+x"]
    assert record["run_id"] in dict(back.pipeline_spec["pipelineInfo"])["description"]


def test_what_only_this_machine_has_goes_on_nowhere_else(tmp_path: Path) -> None:
    """A report is left where it is; an artifact that a step needs is refused by whoever looks at `needed`."""
    spec = {
        "pipelineInfo": {"name": "p"},
        "root": {
            "dag": {
                "tasks": {
                    "one": {"componentRef": {"name": "comp-one"}},
                    "two": {
                        "componentRef": {"name": "comp-two"},
                        "dependentTasks": ["one"],
                        "inputs": {"artifacts": {"data": _output("data")}},
                    },
                },
                "outputs": {"artifacts": {"report": {"artifactSelectors": [_selected("report")]}}},
            },
            "outputDefinitions": {"artifacts": {"report": _KIND}},
        },
        "components": {
            "comp-one": {"executorLabel": "a", "outputDefinitions": {"artifacts": {"report": _KIND, "data": _KIND}}},
            "comp-two": {"executorLabel": "b", "inputDefinitions": {"artifacts": {"data": _KIND}}},
        },
        "deploymentSpec": {"executors": {"a": {"container": {}}, "b": {"container": {}}}},
    }
    made = Made(artifacts={name: [{"uri": f"/here/{name}", "metadata": {}}] for name in ("report", "data")})
    earlier = EarlierRun(
        "r", "local", "failed", {"pipelineInfo": {"name": "p"}}, {}, {"one": "succeeded"}, {"one": made}
    )
    found = gone_on([spec], earlier, can_read=lambda uri: uri.startswith("gs://"))
    assert found.needed == {"/here/data": "data of one"}
    root = found.documents[0]["root"]
    assert set(root["dag"]["tasks"]) == {"one-data", "two"}
    assert root["dag"]["tasks"]["two"]["dependentTasks"] == ["one-data"]
    assert "outputs" not in root["dag"]
    assert set(gone_on([spec], earlier).needed) == {"/here/data", "/here/report"}


_KIND = {"artifactType": {"schemaTitle": "system.Dataset", "schemaVersion": "0.0.1"}}


def _output(name: str) -> dict[str, Any]:
    return {"taskOutputArtifact": {"outputArtifactKey": name, "producerTask": "one"}}


def _selected(name: str) -> dict[str, Any]:
    return {"outputArtifactKey": name, "producerSubtask": "one"}


def test_a_run_goes_on_on_kubeflow_with_importers(
    vertex_emulator: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # KFP's client keeps a context at home.
    monkeypatch.setenv("HOME", str(tmp_path))
    failed = run(vertex_emulator, tmp_path, "four.py")
    with serving() as kfp_api:
        there = ("--target", "kubeflow", "--kubeflow-host", kfp_api.url, "-p", "mode=good")
        done = command(vertex_emulator, tmp_path, "run", "four.py", "--resume", failed.name, *there)
        assert done.status == 0, done.err
        ((_, sent),) = kfp_api.state.runs.items()
    spec = sent["pipeline_spec"]
    spec = spec.get("pipeline_spec", spec)
    assert set(spec["root"]["dag"]["tasks"]) == {"second-more", "third", "fourth"}
    importer = spec["deploymentSpec"]["executors"]["exec-second-more"]["importer"]
    assert importer["artifactUri"]["constant"].endswith("/second/more")
    fourth = spec["root"]["dag"]["tasks"]["fourth"]["inputs"]["parameters"]["one"]
    assert fourth == {"runtimeValue": {"constant": "a"}}


PARTS = f"""{STEPS}

@dsl.pipeline(name="inner")
def inner(text: str) -> str:
    one = first(text=text)
    two = second(text="x", data=one.outputs["data"])
    return third(mode="good", more=two.outputs["more"]).outputs["made"]


@dsl.pipeline(name="parts")
def parts(text: str = "a", mode: str = "bad"):
    with dsl.ExitHandler(status(), name="guarded"):
        made = inner(text=text)
        with dsl.If(made.output == "data-a+x", name="as-expected"):
            fourth(one="in the branch", three=made.output)
            with dsl.If(mode == "bad", name="breaks"):
                fourth(one=mode, three="broken")
        with dsl.If(made.output == "other", name="else"):
            fourth(one="never", three="never")
""".replace('echo "fourth: $0 $1"\'', 'echo "fourth: $0 $1"; [ $1 != broken ]\'')


def test_branches_parts_and_exit_handlers_go_on(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    failed = run(vertex_emulator, tmp_path, "parts.py:parts")
    before = said(vertex_emulator)
    assert before[:3] == ["first", "second", "third"]
    assert set(before[3:]) == {"fourth: in the branch data-a+x", "fourth: bad broken"}
    gone_on = run(vertex_emulator, tmp_path, "--resume", failed.name, "-p", "mode=good")
    assert gone_on.state.name == "PIPELINE_STATE_SUCCEEDED", gone_on.error.message
    assert said(vertex_emulator) == before, "the step that broke is not wanted any more, and the others are done"
    told = [line for line in vertex_emulator.state.logs.messages() if line.startswith("status")]
    assert len(told) == 2, "what ends a run runs at the end of each"
    assert '"SUCCEEDED"' in told[1]


LOOP = f"""{STEPS}

@dsl.pipeline(name="loop")
def loop(modes: list = ["good", "bad"]):
    one = first(text="a")
    with dsl.ParallelFor(modes, name="turns", parallelism=1) as item:
        two = second(text="x", data=one.outputs["data"])
        third(mode=item, more=two.outputs["more"])
"""


def test_a_loop_that_was_broken_off_is_refused(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    failed = run(vertex_emulator, tmp_path, "loop.py")
    done = command(vertex_emulator, tmp_path, "run", "--resume", failed.name, "--target", "vertex")
    assert done.status == 2
    assert "ended inside the loop" in done.err
    assert "--cache" in done.err


LOOPS = f"""{STEPS}

@dsl.container_component
def all_of(made: list, mode: str):
    return dsl.ContainerSpec("any", ["sh", "-c"], ['echo "fourth: $0"; [ "$1" != bad ]', made, mode])


@dsl.pipeline(name="inner")
def inner(text: str, mode: str):
    with dsl.ParallelFor(["x", "y"]) as item:
        made = first(text=text)
    all_of(made=dsl.Collected(made.outputs["made"]), mode=mode)


@dsl.pipeline(name="loops")
def loops(mode: str = "bad"):
    before = inner(text="a", mode="good")
    inner(text="b", mode=mode).after(before)
"""


def test_loops_in_several_pipelines_of_one_are_each_taken_over(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(LOOPS)
    failed = run(vertex_emulator, tmp_path, "loops.py:loops")
    assert said(vertex_emulator)[-1] == 'fourth: ["b", "b"]', failed.error.message
    gone_on = run(vertex_emulator, tmp_path, "--resume", failed.name, "-p", "mode=good")
    assert gone_on.state.name == "PIPELINE_STATE_SUCCEEDED", gone_on.error.message
    assert said(vertex_emulator)[6:] == ['fourth: ["b", "b"]'], "the second loop's, and nothing else runs"


def test_loops_of_one_name_are_not_taken_for_each_other(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    # Sent by another program, which leaves the names as KFP makes them.
    (tmp_path / "loops.py").write_text(LOOPS)
    (tmp_path / "compile.py").write_text(
        "import loops\nfrom kfp import compiler\ncompiler.Compiler().compile(loops.loops, 'loops.yaml')\n"
    )
    subprocess.run([sys.executable, "compile.py"], cwd=tmp_path, check=True, timeout=60)
    failed = run_spec(vertex_emulator, yaml.safe_load((tmp_path / "loops.yaml").read_text()))
    done = command(vertex_emulator, tmp_path, "run", "--resume", failed.name, "--target", "vertex", "-p", "mode=good")
    assert done.status == 2
    assert "for-loop-2" in done.err
    assert "so it is not known which" in done.err
