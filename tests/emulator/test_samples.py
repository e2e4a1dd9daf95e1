"""Pipelines that nobody here wrote run whole, unchanged, and leave what their authors state."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from sample_runs import SAMPLES, outputs, run_spec, sample, states

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


def said(emulator: VertexApi) -> list[str]:
    return emulator.state.logs.messages()


def succeeded(emulator: VertexApi, name: str, **parameters: Any) -> Any:
    job = run_spec(emulator, sample(name), **parameters)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join([job.error.message, *said(emulator)[-25:]])
    return job


def put_shakespeare(emulator: VertexApi) -> None:
    """Public objects that several of them read, in an emulator's own bucket of that name."""
    emulator.storage.add_bucket("ml-pipeline-playground")
    for number in (1, 2):
        place = emulator.folder / f"gcs/ml-pipeline-playground/shakespeare{number}.txt"
        place.write_text("To be, or not to be")


@pytest.mark.parametrize(
    ("name", "parameters", "lines"),
    [
        ("hello_world", {}, ["hello world"]),
        ("sequential_v1", {"param1": "First", "param2": "Second"}, ["First", "Second"]),
        ("arguments_parameters", {"param1": "arg1", "param2": "arg2"}, ["arg1-arg2"]),
        ("container_no_input", {}, ["hello world"]),
        ("pipeline_with_after", {}, ["1st task", "2nd task", "3rd task"]),
        ("two_step_pipeline_containerized", {}, ["Hello KFP Containerized!"]),
        ("producer_consumer_param_pipeline", {"text": "Hello world"}, ["Hello world, this is an output parameter"]),
        ("placeholder_with_if_placeholder_none_input_value", {}, ["--arg0 input0 --arg2 default value"]),
    ],
)
def test_containers_of_kfp_say_what_their_authors_state(
    vertex_emulator: VertexApi, name: str, parameters: dict[str, Any], lines: list[str]
) -> None:
    job = succeeded(vertex_emulator, name, **parameters)
    found = said(vertex_emulator)
    # Tasks that do not wait for each other run in any order.
    assert sorted(line for line in found if line in lines) == sorted(lines), found
    assert set(states(job).values()) == {"SUCCEEDED"}


def test_an_exit_task_of_kfp_is_told_how_the_pipeline_ended(vertex_emulator: VertexApi) -> None:
    succeeded(vertex_emulator, "pipeline_with_task_final_status_yaml")
    assert said(vertex_emulator)[0] == "Hello World!"
    told = said(vertex_emulator)[1]
    assert told.startswith('user input: Hello World! pipeline status: {"state": "SUCCEEDED"')
    assert '"pipelineTaskName": "exit-handler-1"' in told


def test_a_function_of_kfp_installs_kfp_and_returns_its_value(vertex_emulator: VertexApi) -> None:
    job = succeeded(vertex_emulator, "add_numbers", a=5, b=5)
    assert outputs(job) == {"Output": 10.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "output"),
    [
        ("concat_message", {"message1": "Hello ", "message2": "World!"}, "Hello World!"),
        ("nested_return", {}, [{"A_a": "1", "B_b": "2"}, {"A_a": "10", "B_b": "20"}]),
        ("component_with_env_variable", {"var_name": "KFP_TEST_ENV_VAR"}, "env_var_value"),
        ("local_execution_pipeline_with_oneof", {"pick_a": True}, "selected:A"),
        ("local_execution_pipeline_with_retry", {"counter_path": "FILE"}, "attempt=2"),
        ("pipeline_with_collected_artifacts", {}, "0,1,2"),
    ],
)
def test_a_pipeline_of_kfp_returns_what_its_authors_state(
    vertex_emulator: VertexApi, tmp_path: Path, name: str, parameters: dict[str, Any], output: Any
) -> None:
    given = {key: str(tmp_path / "count") if value == "FILE" else value for key, value in parameters.items()}
    assert outputs(succeeded(vertex_emulator, name, **given)) == {"Output": output}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "task", "output"),
    [
        # The doubles of two and three: the condition does not hold for one.
        ("conditional_producer_and_consumers", {}, "add", 10.0),
        ("collected_parameters", {}, "collecting-parameters", ["model_id_s1", "model_id_s2", "model_id_s3"]),
        # Its tasks take accelerator and memory from tasks that the file says nothing else of.
        ("pipeline_with_string_machine_fields_task_output", {}, "sum-numbers", 3.0),
        ("local_execution_pipeline_with_exit_handler", {"message": "hi"}, "record-exit", "exit:SUCCEEDED"),
    ],
)
def test_a_task_of_kfp_makes_what_its_function_says(
    vertex_emulator: VertexApi, name: str, parameters: dict[str, Any], task: str, output: Any
) -> None:
    assert outputs(succeeded(vertex_emulator, name, **parameters), task)["Output"] == output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "lines"),
    [
        ("pipeline_with_loops", {"loop_parameter": ["item1", "item2", "item3"]}, ["item1", "item2", "item3", "1"]),
        ("component_with_optional_inputs", {}, ["input3: None, type: <class 'NoneType'>"]),
        ("nested_pipeline_opt_inputs_nil_compiled", {}, []),
        ("pipeline_in_pipeline_loaded_from_yaml", {}, ["Hello", "Hello"]),
        ("lightweight_python_functions_pipeline", {"message": "hello"}, []),
        ("component_with_pip_install_in_venv", {}, []),
    ],
)
def test_functions_of_kfp_say_what_their_authors_state(
    vertex_emulator: VertexApi, name: str, parameters: dict[str, Any], lines: list[str]
) -> None:
    succeeded(vertex_emulator, name, **parameters)
    for line in lines:
        assert line in said(vertex_emulator)


@pytest.mark.slow
def test_steps_of_kfp_copy_with_gsutil(vertex_emulator: VertexApi) -> None:
    vertex_emulator.storage.put("some.txt", b"some text")
    succeeded(vertex_emulator, "sequential_v2", url="gs://example-bucket/some.txt")
    assert "some text" in said(vertex_emulator)
    # Its pieces go up as they come from a pipe.
    succeeded(vertex_emulator, "two_step_pipeline", text="Hello KFP!")
    assert "Hello KFP!" in said(vertex_emulator)


@pytest.mark.slow
def test_coins_of_kfp_take_one_branch_each(vertex_emulator: VertexApi) -> None:
    job = succeeded(vertex_emulator, "flip_coin")
    assert outputs(job, "flip-coin")["Output"] in ("heads", "tails")
    taken = [name for name, state in states(job).items() if name.startswith("condition-") and state == "SUCCEEDED"]
    assert len(taken) == 2, states(job)


@pytest.mark.slow
def test_an_artifact_of_kfp_is_imported_by_its_uri(vertex_emulator: VertexApi) -> None:
    put_shakespeare(vertex_emulator)
    job = succeeded(vertex_emulator, "pipeline_with_importer")
    assert any("To be, or not to be" in line for line in said(vertex_emulator))
    (imported,) = [
        task.outputs["artifact"].artifacts[0] for task in job.job_detail.task_details if task.task_name == "importer"
    ]
    assert imported.uri == "gs://ml-pipeline-playground/shakespeare1.txt"
    assert dict(imported.metadata) == {"key": "value"}


@pytest.mark.slow
def test_components_of_google_cloud_create_their_custom_jobs(vertex_emulator: VertexApi) -> None:
    given = {"project": "example-project", "location": "us-central1"}
    succeeded(vertex_emulator, "pipeline_with_dynamic_task_output_custom_training_job", **given)
    (job,) = vertex_emulator.state.custom_jobs.jobs.values()
    pool = job.job_spec.worker_pool_specs[0]
    assert (pool.machine_spec.machine_type, job.state.name) == ("n1-standard-4", "JOB_STATE_SUCCEEDED")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("notebook", "lines"),
    [
        (
            "lightweight_functions_component_io_kfp",
            ["Imported Dataset: To be, or not to be", "generic contents: Hello, World"],
        ),
        (
            "pipelines_intro_kfp",
            [
                "hi there",
                "text1: hi there; text2: output one from text: hi there; text3: output two from text: hi there",
            ],
        ),
    ],
)
def test_a_notebook_of_vertex_ai_samples_runs_with_the_sdk(
    vertex_emulator: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notebook: str, lines: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put_shakespeare(vertex_emulator)
    settings = {"PROJECT_ID": "example-project", "LOCATION": "us-central1", "BUCKET_URI": "gs://example-bucket"}
    cells = runpy.run_path(str(SAMPLES / f"vertex_ai_samples/{notebook}.py"), settings)
    assert cells["job"].state.name == "PIPELINE_STATE_SUCCEEDED"
    for line in lines:
        assert line in said(vertex_emulator)


def test_every_sample_is_run(request: pytest.FixtureRequest) -> None:
    source = Path(__file__).read_text()
    for file in SAMPLES.glob("*/*.*"):
        assert f'"{file.stem}"' in source, f"{file.name} is kept and no test runs it"
        if file.suffix == ".yaml":
            assert len(list(yaml.safe_load_all(file.read_text()))) == 1
