"""Pipelines in a Python program: docs/python.md as it is written, and what is refused."""

from __future__ import annotations

import ast
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import printed_by
from forked import Forked
from small import small

import gpu_pipelines
from gpu_pipelines.driver.opening import target_and_others
from gpu_pipelines.driver.parameters.given import assignments_of
from gpu_pipelines.driver.parameters.texts import converted
from gpu_pipelines.errors import InvalidRequestError, NotFoundError, RunFailedError, UserError

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"
SMALL = Path(__file__).with_name("small.py")
PREPARED = """
from kfp import dsl
from gpu_pipelines.components import prepare_data

@dsl.pipeline(name="prepared")
def prepared(source: str):
    prepare_data(source=source)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_of_the_document_run(digits_run: Path, tmp_path: Path) -> None:
    shutil.copytree(digits_run / "runs", tmp_path / "runs")
    shutil.copytree(digits_run / "registry", tmp_path / "registry")
    examples = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(examples) == 5
    (tmp_path / "examples.py").write_text("\n".join(examples), encoding="utf-8")
    done = subprocess.run([sys.executable, "examples.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "g2-standard-48 4" in done.stdout
    assert "epochs takes a number; got 'many'." in done.stdout
    assert "halve failed" in done.stdout


def test_the_package_shows_what_programs_use_and_imports_nothing_for_it(tmp_path: Path) -> None:
    code = "import sys; before = set(sys.modules); import gpu_pipelines as g; print(set(sys.modules) - before, dir(g))"
    assert printed_by(code, tmp_path).strip() == f"{{'gpu_pipelines'}} {sorted(gpu_pipelines.__all__)}"
    heavy = "print([n for n in ('kfp', 'torch', 'google.api_core', 'numpy') if n in sys.modules])"
    code = f"import sys, gpu_pipelines as g; [getattr(g, n) for n in dir(g)]; g.plan('l4:1'); {heavy}"
    assert printed_by(code, tmp_path).strip() == "[]"
    with pytest.raises(AttributeError):
        _ = gpu_pipelines.nothing  # type: ignore[attr-defined]


def test_type_checkers_are_told_of_the_same_names() -> None:
    tree = ast.parse(Path(gpu_pipelines.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {name: place for name, place in imported.items() if name != "import_module"} == gpu_pipelines._PLACES
    assert sorted([*gpu_pipelines._PLACES, "__version__"]) == gpu_pipelines.__all__


def test_type_checkers_tell_the_text_of_a_compiled_pipeline_from_its_file(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from gpu_pipelines.driver.programs import compile\n"
        'text: str = compile("half.py", "vertex", accelerator="l4:4")\n'
        'file: Path = compile("half.py", path="half.yaml")\n'
        'other: Path = compile("half.py", "vertex", Path("half.yaml"), task="regression")\n'
    )
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    # No other file is followed, which would take a minute.
    flags = ["--strict", "--follow-imports=skip", "--config-file=", f"--cache-dir={os.devnull}"]
    place = str(Path(gpu_pipelines.__file__).parent / "driver" / "programs.py")
    command = [sys.executable, "-m", "mypy", *flags, "program.py", place]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert [line for line in told.splitlines() if line.startswith("program.py")] == []
    assert "checked 2 source files" in told


@pytest.mark.parametrize("form", [small, "small.py", "small.py:small", "small.yaml"])
def test_a_pipeline_is_a_function_or_a_file(form: Any, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copy(SMALL, here)
    if form == "small.yaml":
        assert gpu_pipelines.compile(small, path="small.yaml") == Path("small.yaml")
    run = gpu_pipelines.run(form, value=4, note="a=b")
    assert (run.status, run.outputs, run.metrics["quality"]) == ("succeeded", {"Output": 0.8}, 0.8)
    assert [step.name for step in run.steps] == ["double", "score"]
    assert run.parameters["note"] == "a=b"
    assert run.report
    assert run.report.is_file()
    told = capfd.readouterr()
    assert told.out == ""
    assert "double: doubling 4" in told.err
    assert gpu_pipelines.open_run() == run


def test_what_is_returned_fits_a_screen(digits_run: Path) -> None:
    run = gpu_pipelines.open_run("latest", digits_run / "runs")
    registry = gpu_pipelines.open_registry(str(digits_run / "registry"))
    evaluation = gpu_pipelines.Evaluation.load(run.artifacts["best_checkpoint"])
    assert gpu_pipelines.Evaluation.load(Path(run.artifacts["best_checkpoint"], "evaluation.json")) == evaluation
    values = [run, registry, registry.version("digits", "champion"), evaluation, gpu_pipelines.plan("t4:2", nodes=2)]
    for value, said in zip(values, ("digits version 1", "digits", "digits", "accuracy", "t4:2"), strict=True):
        assert said in repr(value)
        assert len(repr(value)) < 1200
        assert len(repr(value).splitlines()) <= 12


def test_advice_and_descriptions_fit_a_screen() -> None:
    advice = gpu_pipelines.advise(gpu_pipelines.Workload(parameters=7e9, tokens=1e9))
    assert re.fullmatch(
        rf"Advice: {len(advice.options)} options, the best first\n"
        rf"  a100:4: [\d.]+ h, \$[\d.]+ on demand, \$[\d.]+ on Spot\n(  .*\n){{4}}  and {len(advice.options) - 5} more",
        repr(advice),
    )
    nowhere = gpu_pipelines.advise(
        gpu_pipelines.Workload(parameters=7e9, tokens=1e9), gpu_pipelines.Wishes(budget_usd=1)
    )
    assert repr(nowhere) == "Advice: 0 options, the best first\n  With no budget, a100:4 would do."
    assert all(len(repr(each)) < 500 and each.name in repr(each) for each in gpu_pipelines.list_components())


def test_a_run_shows_its_steps_and_gives_what_they_have_made(digits_run: Path) -> None:
    run = gpu_pipelines.open_run("latest", digits_run / "runs")
    page = run._repr_html_()
    for said in ("train-model", "test_accuracy", "digits version 1", "report.html"):
        assert said in page
    assert Path(run.artifact("dataset"), "dataset.json").is_file()
    assert list(Path(run.artifact("checkpoints", "train-model")).glob("step-*"))
    with pytest.raises(UserError, match=r"No step of .* has left 'datasett'.") as wrong:
        run.artifact("datasett")
    assert "dataset" in wrong.value.remedy
    with pytest.raises(UserError, match="have an output report"):
        run.artifact("report")


def test_runs_are_listed_compared_and_removed(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = (gpu_pipelines.run(SMALL, value=value, progress=False) for value in (3, 4))
    assert [run.id for run in gpu_pipelines.list_runs()] == [second.id, first.id]
    assert gpu_pipelines.list_runs()[1] == first
    assert first.started <= second.started
    (here / "runs" / "broken").mkdir()
    (here / "runs" / "broken" / "run.json").write_text("{")
    assert len(gpu_pipelines.list_runs("runs")) == 2
    assert "warning: a run is not listed" in capfd.readouterr().err
    found = gpu_pipelines.compare_runs(first.id, "latest")
    assert found["runs"] == {"a": first.id, "b": second.id}
    assert found["parameters"] == {"value": {"a": 3, "b": 4}}
    assert gpu_pipelines.compare_runs(first, second, "nowhere") == found
    assert gpu_pipelines.remove_runs([], "nowhere") == []
    assert not Path("nowhere").exists()
    with pytest.raises(NotFoundError, match=f"The run {first.id} is in .*runs, not in other"):
        gpu_pipelines.remove_runs(first, "other")
    assert gpu_pipelines.remove_runs([first, first.id]) == [first.id]
    assert gpu_pipelines.list_runs() == [second]
    with pytest.raises(NotFoundError, match="There is no run"):
        gpu_pipelines.remove_runs([first.id])
    with pytest.raises(InvalidRequestError, match=r"first takes text or a Run; got '3'"):
        gpu_pipelines.compare_runs(3, first)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"The run job is on vertex\."):
        gpu_pipelines.remove_runs(replace(second, id="job", target="vertex", directory=None))


def test_a_function_says_its_parameters() -> None:
    (step,) = gpu_pipelines.list_parameters(small).values()
    assert {name: (each.type, each.default) for name, each in step.items()} == {
        "value": ("Integer", 3),
        "seconds": ("Float", 0.0),
        "note": ("String", "none"),
    }
    assert gpu_pipelines.list_parameters(SMALL) == {"pipeline": step}
    with pytest.raises(UserError, match="has no parameter task"):
        gpu_pipelines.list_parameters(SMALL, "regression")


def test_a_failed_run_raises_and_has_its_run(here: Path) -> None:
    with pytest.raises(RunFailedError, match=r"score failed: \w+Error: ") as failed:
        gpu_pipelines.run(small, value=60, progress=False)
    assert failed.value.run.status == "failed"
    assert [step.status for step in failed.value.run.steps] == ["succeeded", "failed"]
    assert gpu_pipelines.open_run().id == failed.value.run.id


@pytest.mark.parametrize(
    ("pipeline", "given", "said"),
    [
        (small, {"value": "three"}, "value takes a whole number"),
        (small, {"value": 1.5}, "value takes a whole number"),
        (small, {"seconds": float("nan")}, "seconds takes a number"),
        (small, {"value": 1, "arguments": {"value": 2}}, "value is given twice."),
        (small, {"value": object()}, "value is <object"),
        (small, {"vlaue": 3}, "Did you mean 'value'?"),
        (
            small,
            {"machine_type": "g2-standard-8"},
            "(--machine-type) is an option of the target compute",
        ),
        (small, {"target": "nowhere"}, "There is no target 'nowhere'"),
        ("train_evaluate_upload", {"accelerator": "h100:8"}, "The target local has no h100:8"),
        (
            small,
            {"target": "kubeflow", "resume": True},
            "On Kubeflow, resume needs the name of the run",
        ),
        (print, {}, "is not a pipeline"),
        ("none.py", {}, "The file none.py does not exist"),
        ("train_evaluate_uplaod", {}, "train_evaluate_upload"),
    ],
)
def test_a_wrong_request_raises_and_runs_nothing(pipeline: Any, given: dict[str, Any], said: str, here: Path) -> None:
    with pytest.raises(UserError) as refused:
        gpu_pipelines.run(pipeline, progress=False, **given)
    assert said in str(refused.value)
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("check_quota('l9:1')", "plan takes an AcceleratorPlan; got 'l9:1'."),
        ("plan('l4:1', nodes=1.5, hours='3')", "  - nodes takes a whole number; got '1.5'.\n  - hours takes a number"),
        ("plan('l4:1', region=['us-central1'])", "region takes text"),
        ("plan('l4:1', today='2027-01-31')", "today takes a date"),
        ("advise('7B')", "workload takes a Workload"),
        ("advise(Workload(parameters='7B', tokens=1e9))", "parameters of workload takes a number; got '7B'."),
        ("worker_pool_specs(plan('l4:1'), Container('i', command='python a.py'))", "command of container takes a list"),
        ("describe_accelerator(4)", "name takes text; got '4'."),
        ("describe_component(None)", "name takes text"),
        ("doctor(['l4:1'], offline=True)", "accelerator takes text"),
        ("open_run(None)", "name takes text; got 'None'."),
        ("open_run('latest', target=4)", "target takes text"),
        ("list_runs(4)", "runs takes text or a path"),
        ("list_schedules(4)", "target takes text"),
        ("remove_runs([4])", "ids takes text or a Run or a list; got '[4]'."),
        ("run('train_evaluate_upload', cache='no')", "cache takes true or false; got 'no'."),
        ("run('train_evaluate_upload', arguments=['epochs'])", "arguments takes a mapping"),
        ("run('train_evaluate_upload', accelerator=None, resume=None, epochs='many')", "epochs takes a number"),
        ("migrate_job(4)", "file takes text or a path"),
        ("evaluate('dataset', 5)", "checkpoints takes text or a path or a list"),
        ("evaluate('dataset', [5])", "checkpoints takes text or a path or a list; got '[5]'."),
        ("job_config('l4:1')", "No image is known: "),
        ("job_config('l4:1')", "Give image, write image into gpu-pipelines.yaml"),
        ("job_config(image='i')", "Give accelerator NAME:COUNT, such as l4:1, or config FILE."),
        ("vm_config('l4:1', 'tf')", "format 'tf' is not known. Valid: gcloud, terraform, script."),
        ("run('train_evaluate_upload', 'vertex')", "Give pipeline_root, write pipeline_root into"),
        ("plan('l4:1', hours=9000)", "Instead: l4:1 --hours 8784;"),
        ("migrate_job(flags=['--regoin=a'])", "'--region'"),
        ("run('train_evaluate_upload', model={'a': {1}})", "Give a text, a number, a list or a mapping."),
        ("export('m', 'onnx', 'x', dtype=type(np.float16()))", "dtype takes text"),
        ("predict('digits', 'rows.csv', 'scores', model_version='2')", "model_version cannot be given here, where the"),
        ("watch('digits', 'rows.csv', model_name='letters')", "model_name cannot be given here, where the model is"),
        ("Evaluation.load(None)", "place takes text or a path; got None."),
        ("run('train_evaluate_upload', source='nowhere', notify='me')", "notify has 'me', which is"),
    ],
)
def test_a_wrong_argument_is_told_by_its_name_in_python(
    call: str, said: str, here: Path, no_project_settings: None
) -> None:
    with pytest.raises(InvalidRequestError if "takes" in said else UserError) as refused:
        eval(call, {name: getattr(gpu_pipelines, name) for name in gpu_pipelines.__all__} | {"np": np})
    assert said in str(refused.value)
    assert not (here / "runs").exists()


def test_functions_are_those_that_they_were_in_another_process() -> None:
    functions = [getattr(gpu_pipelines, name) for name in dir(gpu_pipelines)]
    assert pickle.loads(pickle.dumps(functions)) == functions
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'node'"):
        gpu_pipelines.plan("l4:1", node=2)  # type: ignore[call-arg]
    many: Any = np.int64(2)
    assert gpu_pipelines.plan("l4:1", nodes=many).to_json()["nodes"] == 2


def test_compile_takes_options_of_its_target_alone(here: Path) -> None:
    text = gpu_pipelines.compile("train_evaluate_upload", accelerator="cpu:1")
    assert isinstance(text, str)
    assert "name: train-evaluate-upload" in text
    with pytest.raises(InvalidRequestError, match="compile has no epochs"):
        gpu_pipelines.compile("train_evaluate_upload", epochs=3)
    with pytest.raises(InvalidRequestError, match=r"option of the target compute_engine, kubeflow or vertex"):
        gpu_pipelines.compile("train_evaluate_upload", machine_type="g2-standard-8")
    with pytest.raises(NotFoundError, match="There are no runs"):
        gpu_pipelines.open_run("latest", here / "runs")


def test_a_list_stands_for_a_text_with_commas_and_numpys_values_for_pythons() -> None:
    for given in (["size", "age"], '["size", "age"]', "size,age"):
        assert converted("String", given) == "size,age"
    assert converted("String", '["size"', any_items=False) == '["size"'
    assert converted("String", '["size"]', any_items=True) == '["size"]', "a user's own pipeline may want JSON"
    given: dict[str, Any] = {"a": np.array([1, 2]), "b": np.True_, "c": {"d": np.float32(0.5), "e": Path("f")}}
    assert assignments_of(given) == ["a=[1, 2]", "b=true", 'c={"d": 0.5, "e": "f"}']
    opened, others = target_and_others("vertex", "run", {"accelerator": ("l4:4", "t4:4"), "regions": ["a", "b"]})
    assert (opened.options.accelerator, opened.options.regions, others) == ("l4:4,t4:4", "a,b", {})


def test_an_interrupted_run_ends_what_it_has_started_and_nothing_else(here: Path) -> None:
    shutil.copy(SMALL, here)
    program = (
        "import subprocess, gpu_pipelines\n"
        "other = subprocess.Popen(['sleep', '300'])\n"
        "try: gpu_pipelines.run('small.py', seconds=60)\n"
        "except KeyboardInterrupt: print(gpu_pipelines.open_run().status, other.poll(), flush=True)\n"
        "other.kill()\n"
    )
    (here / "program.py").write_text(program)
    process = Forked("program.py", [], os.environ)
    deadline = time.monotonic() + 60
    while not any("Running: double" in page.read_text() for page in here.glob("runs/*/report.html")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[0].strip() == "interrupted None"


def test_a_run_that_is_interrupted_before_its_first_step_is_no_longer_running(here: Path) -> None:
    shutil.copy(SMALL, here)
    program = (
        "import re, signal, sys, gpu_pipelines\n"
        "def interrupt_at_the_report(event, arguments, done=[]):\n"
        "    if event == 'open' and re.match('runs/.*report.html', str(arguments[0])) and not done:\n"
        "        done.append(event)\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "sys.addaudithook(interrupt_at_the_report)\n"
        "try: gpu_pipelines.run('small.py', progress=False)\n"
        "except KeyboardInterrupt: pass\n"
        "print(gpu_pipelines.open_run())\n"
        "print(gpu_pipelines.run('small.py', resume=True, progress=False).status)\n"
    )
    (here / "program.py").write_text(program)
    printed, _ = Forked("program.py", [], os.environ).communicate()
    interrupted, resumed = printed.strip().split("\n  report")
    assert interrupted.partition(" on local: ")[2].startswith("interrupted")
    assert resumed.endswith("succeeded")


def test_pipelines_of_several_threads_run_one_after_the_other(here: Path) -> None:
    before = sys.stdout, print
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda value: gpu_pipelines.run(small, value=value, progress=False), (1, 2, 3)))
    assert (sys.stdout, print) == before
    for value, run in enumerate(runs, start=1):
        assert run.outputs == {"Output": value / 5}
        assert here / run.directory in Path(run.artifact("page", "score")).parents


@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_a_function_is_placed_as_its_file_is(target: str, here: Path, no_project_settings: None) -> None:
    shutil.copy(SMALL, here)
    given: dict[str, Any] = {"accelerator": "score=l4:1", "image": "us-docker.pkg.dev/project/images/steps:1"}
    text = gpu_pipelines.compile(small, target, **given)
    assert text == gpu_pipelines.compile("small.py", target, **given)
    assert "nvidia-l4" in text or "NVIDIA_L4" in text


def test_a_file_whose_image_nobody_can_pull_is_told_of(
    here: Path, no_project_settings: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("prepared.py").write_text(PREPARED)
    gpu_pipelines.compile("prepared.py")
    gpu_pipelines.compile("prepared.py", "vertex", image="us-docker.pkg.dev/project/images/steps:1")
    assert capsys.readouterr().err == ""
    gpu_pipelines.compile("prepared.py", "vertex")
    assert "nobody can pull" in capsys.readouterr().err
