"""`schedule` against the server: what is there afterwards is what was asked for, once."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Finished, set_variables
from google.protobuf import json_format
from small_pipelines import compiled_sum
from vertex_commands import PROJECT_FILE, command

import gpu_pipelines
from gpu_pipelines.driver.parameters.arguments import values_given
from gpu_pipelines.emulator.pipelines.schedules import following
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.cron import next_times, parse_cron, parse_time, shown_time
from gpu_pipelines.targets.messages import Compiled
from gpu_pipelines.targets.vertex.schedules import differences

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

DAILY = ("--cron", "0 3 * * *", "--time-zone", "Europe/Paris")


def schedules(api: VertexApi) -> list[Any]:
    return list(api.state.schedules.schedules.values())


def create(api: VertexApi, folder: Path, *arguments: str, name: str = "nightly") -> Finished:
    """Uploads the small pipeline and makes a schedule of it."""
    command(api, folder, "upload", str(compiled_sum(folder)))
    return command(api, folder, "schedule", "create", "sum", "--name", name, "-p", "a=2", *arguments)


def test_a_schedule_is_made_of_the_version_that_a_tag_names(vertex_api: VertexApi, tmp_path: Path) -> None:
    limits = ("--start", "2098-01-01", "--end", "2099-01-01T12:00Z", "--max-runs", "5", "--max-concurrent", "2")
    done = create(vertex_api, tmp_path, *DAILY, *limits, "--queue", "--label", "team=vision")
    assert done.status == 0, done.err
    [made] = schedules(vertex_api)
    assert (made.display_name, made.cron) == ("nightly", "TZ=Europe/Paris 0 3 * * *")
    # Midnight in Paris.
    assert made.start_time == datetime(2097, 12, 31, 23, tzinfo=timezone.utc)
    assert made.end_time == datetime(2099, 1, 1, 12, tzinfo=timezone.utc)
    assert (made.max_run_count, made.max_concurrent_run_count, made.allow_queueing) == (5, 2, True)
    assert made.max_concurrent_active_run_count == 2, "the other one is of runs that are being started"
    job = made.create_pipeline_job_request.pipeline_job
    [version] = vertex_api.state.repositories.packages["us-central1/pipelines/sum"].versions
    assert job.template_uri == f"{vertex_api.url}/example-project/pipelines/sum/{version}"
    assert job.runtime_config.parameter_values["a"] == 2
    assert dict(job.labels) == {"team": "vision"}
    assert f"created   nightly ({made.name.rpartition('/')[2]})" in done.out
    assert "next runs 2098-01-01 03:00 CET (2098-01-01 02:00 UTC)" in done.out
    assert "runs      0 so far of at most 5, 2 at the same time; one that is due meanwhile waits" in done.out
    # As one is that was made without the limit.
    vertex_api.state.schedules.held[made.name].max_concurrent_active_run_count = 0
    shown = command(vertex_api, tmp_path, "schedule", "describe", "nightly")
    assert "runs      0 so far of at most 5, any number at the same time; one that" in shown.out


def test_a_schedule_has_the_failure_policy_and_the_network_of_its_runs(vertex_api: VertexApi, tmp_path: Path) -> None:
    attachment = "projects/p/regions/us-central1/networkAttachments/a"
    create(vertex_api, tmp_path, *DAILY, "--failure-policy", "fast", "--network-attachment", attachment)
    [made] = schedules(vertex_api)
    job = made.create_pipeline_job_request.pipeline_job
    assert job.runtime_config.failure_policy.name == "PIPELINE_FAILURE_POLICY_FAIL_FAST"
    assert job.psc_interface_config.network_attachment == attachment


def test_a_program_uploads_and_schedules_as_the_commands_do(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text(PROJECT_FILE.format(url=vertex_api.url))
    monkeypatch.chdir(tmp_path)
    set_variables(monkeypatch, vertex_api.environment())
    uploaded = gpu_pipelines.upload(compiled_sum(tmp_path), tags=["stable"])
    told = json.loads(command(vertex_api, tmp_path, "upload", "sum.yaml", "--tag", "stable", "--json").out)
    assert uploaded == told
    assert gpu_pipelines.upload(compiled_sum(tmp_path), tags="stable") == told
    made = gpu_pipelines.schedule("sum/stable", "nightly", "0 3 * * *", time_zone="Europe/Paris", max_runs=5, a=2)
    assert made.document == json.loads(command(vertex_api, tmp_path, "schedule", "describe", "nightly", "--json").out)
    [held] = schedules(vertex_api)
    assert (held.cron, held.max_run_count) == ("TZ=Europe/Paris 0 3 * * *", 5)
    assert held.create_pipeline_job_request.pipeline_job.runtime_config.parameter_values["a"] == 2
    for wrong, said in (
        ({"a": "many"}, "a takes a whole number"),
        ({"nodes": 2}, "nodes"),
        ({"end": "2001-01-01"}, "ever run"),
        ({"max_runs": 0}, "max_runs is 0; the least is 1."),
    ):
        with pytest.raises(UserError, match=said):
            gpu_pipelines.schedule("sum/stable", "other", "0 3 * * *", **wrong)
    with pytest.raises(UserError, match="schedule create is not for the target local"):
        gpu_pipelines.schedule("sum/stable", "other", "0 3 * * *", "local")
    with pytest.raises(UserError, match="upload is not for the target compute_engine"):
        gpu_pipelines.upload("train_evaluate_upload", "compute_engine")
    with pytest.raises(UserError, match="There is no parameter 'epoch'"):
        gpu_pipelines.upload("train_evaluate_upload", accelerator="l4:1", epoch=3)
    assert len(schedules(vertex_api)) == 1
    capsys.readouterr()
    gpu_pipelines.upload("train_evaluate_upload", accelerator="t4:1")
    assert "warning: t4 (Turing) has no bf16" in capsys.readouterr().err


def test_a_program_looks_at_schedules_and_changes_them_as_the_commands_do(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create(vertex_api, tmp_path, *DAILY, "-p", "a=2")
    monkeypatch.chdir(tmp_path)
    set_variables(monkeypatch, vertex_api.environment())
    project = {"project": "example-project", "region": "us-central1"}
    (found,) = gpu_pipelines.list_schedules(**project)
    assert gpu_pipelines.open_schedule("nightly", **project) == found
    assert (found.name, found.target) == ("nightly", "vertex")
    assert gpu_pipelines.open_schedule(found.id).document["state"] == "ACTIVE"
    assert found.pause().document["state"] == "PAUSED"
    assert found.resume(catch_up=True).document["state"] == "ACTIVE"
    changed = found.update(cron="0 4 * * *", a=5, max_runs=7)
    assert changed.id == found.id
    assert (changed.document["cron"], changed.document["maxRunCount"]) == ("TZ=Europe/Paris 0 4 * * *", "7")
    assert changed.document["createPipelineJobRequest"]["pipelineJob"]["runtimeConfig"]["parameterValues"]["a"] == 5
    for wrong, said in (({"a": "many"}, "a takes a whole number"), ({"end": "2001-01-01"}, "ever run")):
        with pytest.raises(UserError, match=said):
            found.update(**wrong)
    with pytest.raises(UserError, match="schedule resume has no catchup"):
        found.resume(catchup=True)
    with pytest.raises(UserError, match="region takes text; got '3'"):
        gpu_pipelines.list_schedules(region=3)
    found.delete()
    assert gpu_pipelines.list_schedules(**project) == []
    with pytest.raises(UserError, match="is not found"):
        found.pause()
    assert capsys.readouterr() == ("", "")


def test_a_dry_run_prints_what_would_be_sent(vertex_api: VertexApi, tmp_path: Path) -> None:
    sent = json.loads(create(vertex_api, tmp_path, *DAILY, "--dry-run").out)
    assert sent["url"] == f"{vertex_api.url}/v1/projects/example-project/locations/us-central1/schedules"
    assert (sent["body"]["maxConcurrentRunCount"], sent["body"]["maxConcurrentActiveRunCount"]) == ("1", "1")
    assert not schedules(vertex_api)


def test_a_schedule_prepares_and_serves_with_what_the_project_and_the_upload_say(
    vertex_api: VertexApi, tmp_path: Path
) -> None:
    name = "train_evaluate_upload"
    (tmp_path / "gpu-pipelines.yaml").write_text(
        PROJECT_FILE.format(url=vertex_api.url) + "serving_image: eu.example/s:1\n"
    )
    flags = ("--accelerator", "l4:1", "--data-nodes", "2", "--data-machine-type", "n2-highmem-8")
    done = command(vertex_api, tmp_path, "upload", name, *flags)
    assert done.status == 0, done.err
    words = ("schedule", "create", name.replace("_", "-"), *DAILY, "--name", "weekly", "-p", "registry=vertex://")
    refused = command(vertex_api, tmp_path, *words, "-p", "source=bq://p.d.t")
    assert refused.status == 2
    assert "The source bq://p.d.t is read by one machine. Leave out ray_address and --data-nodes" in refused.err
    refused = command(vertex_api, tmp_path, *words, "-p", "script=gs://example-bucket/train.py")
    assert refused.status == 2
    assert (
        "train-evaluate-upload does not train with a script.\n  Compile or upload train_script_evaluate_upload"
        in refused.err
    )
    done = command(vertex_api, tmp_path, *words, "-p", "source=gs://example-bucket/photos")
    assert done.status == 0, done.err
    [made] = schedules(vertex_api)
    job = made.create_pipeline_job_request.pipeline_job
    assert job.runtime_config.parameter_values["advanced"]["serving_image"] == "eu.example/s:1"


def test_a_schedule_is_listed_shown_paused_resumed_and_deleted(vertex_api: VertexApi, tmp_path: Path) -> None:
    create(vertex_api, tmp_path, *DAILY)
    create(vertex_api, tmp_path, "--cron", "TZ=UTC 0 4 * * 1", name="weekly")
    listed = command(vertex_api, tmp_path, "schedule", "list").out
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["weekly", "nightly"]
    (due,) = next_times(parse_cron("TZ=UTC 0 4 * * 1"), None, None, 1)
    assert f"{due:%Y-%m-%d %H:%M}" in listed
    made = next(schedule for schedule in schedules(vertex_api) if schedule.display_name == "nightly")
    shown = command(vertex_api, tmp_path, "schedule", "describe", "nightly").out
    assert "cron      TZ=Europe/Paris 0 3 * * *" in shown
    assert 'with      a = 2\n          note = "none"' in shown
    for words, state in ((["pause"], "PAUSED"), (["pause"], "PAUSED"), (["resume", "--catch-up"], "ACTIVE")):
        done = command(vertex_api, tmp_path, "schedule", *words, made.name.rpartition("/")[2])
        assert (done.status, made.state.name) == (0, state), done.err
        assert ("next_run_time" in made) == (state == "ACTIVE")
    assert made.catch_up
    command(vertex_api, tmp_path, "schedule", "pause", "nightly")
    command(vertex_api, tmp_path, "schedule", "resume", "nightly")
    assert command(vertex_api, tmp_path, "schedule", "resume", "nightly").status == 0
    late = command(vertex_api, tmp_path, "schedule", "resume", "nightly", "--catch-up")
    assert (late.status, "The schedule is ACTIVE, not PAUSED." in late.err) == (2, True)
    assert command(vertex_api, tmp_path, "schedule", "delete", made.name).status == 0
    assert [schedule.display_name for schedule in schedules(vertex_api)] == ["weekly"]
    done = command(vertex_api, tmp_path, "schedule", "describe", "nightly")
    assert done.status == 2
    assert "There is no schedule 'nightly' in us-central1" in done.err


def test_a_schedule_of_another_program_is_shown_too(vertex_api: VertexApi, tmp_path: Path) -> None:
    create(vertex_api, tmp_path, *DAILY)
    [made] = schedules(vertex_api)
    made.cron = "TZ=America/New_York 0 3 * * MON-FRI"
    shown = command(vertex_api, tmp_path, "schedule", "describe", "nightly")
    assert (shown.status, f"next runs {made.next_run_time:%Y-%m-%d %H:%M} UTC" in shown.out) == (0, True), shown.err
    made.create_notebook_execution_job_request = {"parent": "projects/p/locations/l"}
    shown = command(vertex_api, tmp_path, "schedule", "describe", "nightly")
    assert (shown.status, "version   a notebook, not a pipeline" in shown.out) == (0, True), shown.err
    refused = command(vertex_api, tmp_path, "schedule", "update", "nightly", "--time-zone", "UTC", "-p", "a=3")
    assert (refused.status, "'MON-FRI' is not valid for the day of the week" in refused.err) == (2, True)
    made.cron = "0 3 * * *"
    refused = command(vertex_api, tmp_path, "schedule", "update", "nightly", "-p", "a=3")
    assert (refused.status, "The schedule nightly runs a notebook, not a pipeline." in refused.err) == (2, True)


def test_a_schedule_says_when_it_runs_next_between_its_start_and_its_end(vertex_api: VertexApi, tmp_path: Path) -> None:
    create(vertex_api, tmp_path, *DAILY, "--start", "2098-01-01", "--end", "2098-01-02")
    [made] = schedules(vertex_api)
    assert made.next_run_time == datetime(2098, 1, 1, 2, tzinfo=timezone.utc)
    done = command(vertex_api, tmp_path, "schedule", "update", "nightly", "--cron", "30 4 * * *")
    assert done.status == 0, done.err
    assert schedules(vertex_api)[0].next_run_time == datetime(2098, 1, 1, 3, 30, tzinfo=timezone.utc)


def test_a_schedule_is_changed_and_keeps_the_rest(vertex_api: VertexApi, tmp_path: Path) -> None:
    create(vertex_api, tmp_path, *DAILY, "--max-runs", "5")
    before = schedules(vertex_api)[0].create_pipeline_job_request.pipeline_job.template_uri
    file = compiled_sum(tmp_path)
    file.write_text(file.read_text().replace("defaultValue: none", "defaultValue: some"))
    command(vertex_api, tmp_path, "upload", str(file), "--tag", "next")
    given = ("--cron", "30 4 * * 1-5", "--pipeline", "sum/next", "-p", "note=new", "--max-concurrent", "3")
    done = command(vertex_api, tmp_path, "schedule", "update", "nightly", *given)
    assert done.status == 0, done.err
    [changed] = schedules(vertex_api)
    assert (changed.cron, changed.max_run_count) == ("TZ=Europe/Paris 30 4 * * 1-5", 5)
    assert (changed.max_concurrent_run_count, changed.max_concurrent_active_run_count) == (3, 3)
    job = changed.create_pipeline_job_request.pipeline_job
    assert job.template_uri != before
    assert dict(job.runtime_config.parameter_values) == {"a": 2, "note": "new"}
    done = command(vertex_api, tmp_path, "schedule", "update", "nightly", "--time-zone", "Asia/Tokyo")
    assert schedules(vertex_api)[0].cron == "TZ=Asia/Tokyo 30 4 * * 1-5"
    done = command(vertex_api, tmp_path, "schedule", "update", "nightly", "-p", "a=x")
    assert (done.status, "a takes a whole number" in done.err) == (2, True)
    done = command(vertex_api, tmp_path, "schedule", "update", "nightly")
    assert (done.status, "No change is given" in done.err) == (2, True)


def test_another_version_of_a_schedule_brings_its_defaults_and_keeps_what_was_given(
    vertex_api: VertexApi, tmp_path: Path
) -> None:
    create(vertex_api, tmp_path, *DAILY)
    file, given = compiled_sum(tmp_path), ("schedule", "update", "nightly", "--pipeline", "sum")
    file.write_text(file.read_text().replace("defaultValue: none", "defaultValue: some"))
    command(vertex_api, tmp_path, "upload", str(file))
    done = command(vertex_api, tmp_path, *given)
    assert done.status == 0, done.err
    assert "kept from the version before: a = 2; other parameters have the new version's defaults" in done.err

    def values() -> dict[str, Any]:
        job = schedules(vertex_api)[0].create_pipeline_job_request.pipeline_job
        return dict(job.runtime_config.parameter_values)

    assert values() == {"a": 2, "note": "some"}
    # What is given with another version is kept as well.
    assert command(vertex_api, tmp_path, "schedule", "update", "nightly", "-p", "note=mine").status == 0
    file.write_text(file.read_text().replace("defaultValue: some", "defaultValue: other"))
    command(vertex_api, tmp_path, "upload", str(file))
    done = command(vertex_api, tmp_path, *given, "-p", "a=3")
    assert "kept from the version before: note = mine; other" in done.err
    assert values() == {"a": 3, "note": "mine"}
    file.write_text(file.read_text().replace("note:", "remark:"))
    command(vertex_api, tmp_path, "upload", str(file))
    done = command(vertex_api, tmp_path, *given)
    assert "warning: the new version has no parameter note, which the one before was given" in done.err
    assert values() == {"a": 3, "remark": "other"}


def test_of_a_pipeline_of_this_project_the_values_given_are_kept_and_those_of_its_task_are_not(
    vertex_api: VertexApi, tmp_path: Path
) -> None:
    name = "train_evaluate_upload"
    command(vertex_api, tmp_path, "compile", name, "--target", "vertex", "--accelerator", "l4:1", "-o", "mine.yaml")
    words = ("schedule", "create", "mine.yaml", *DAILY, "--name", "weekly")
    given = {"task": "causal_lm", "source": "gs://example-bucket/texts", "epochs": "5", "weight_decay": "0.3"}
    done = command(vertex_api, tmp_path, *words, *(part for each in given.items() for part in ("-p", "=".join(each))))
    assert done.status == 0, done.err
    [made] = schedules(vertex_api)
    job = made.create_pipeline_job_request.pipeline_job
    spec, stored = (json_format.MessageToDict(each) for each in (job._pb.pipeline_spec, job._pb.runtime_config))
    found = values_given(Compiled("train-evaluate-upload", spec=spec), stored["parameterValues"])
    assert found == {**given, "epochs": 5, "weight_decay": 0.3}


def test_a_default_that_a_version_was_uploaded_with_is_that_of_its_schedule(
    vertex_api: VertexApi, tmp_path: Path
) -> None:
    name, flags = "train_evaluate_upload", ("--accelerator", "l4:1", "-p", "weight_decay=0.123")
    done = command(vertex_api, tmp_path, "upload", name, *flags)
    assert done.status == 0, done.err

    def advanced(*words: str) -> dict[str, Any]:
        done = command(vertex_api, tmp_path, "schedule", *words)
        assert done.status == 0, done.err
        job = schedules(vertex_api)[0].create_pipeline_job_request.pipeline_job
        return dict(job.runtime_config.parameter_values["advanced"])

    assert advanced("create", name, *DAILY, "--name", "weekly") == {"weight_decay": 0.123}
    assert advanced("update", "weekly", "-p", "epochs=2") == {"weight_decay": 0.123}
    # That of the step is given: it stands in no `advanced`, and stays.
    assert "weight_decay" not in advanced("update", "weekly", "-p", "weight_decay=-1")
    assert "weight_decay" not in advanced("update", "weekly", "-p", "epochs=3")
    assert "weight_decay" not in advanced("update", "weekly", "--pipeline", name)
    done = command(vertex_api, tmp_path, "schedule", "update", "weekly", "--pipeline", name)
    assert "kept from the version before: epochs = 3, weight_decay = -1; other parameters" in done.err


def test_a_second_schedule_of_a_name_is_refused(vertex_api: VertexApi, tmp_path: Path) -> None:
    create(vertex_api, tmp_path, *DAILY)
    done = create(vertex_api, tmp_path, *DAILY)
    assert done.status == 2
    assert "There is a schedule 'nightly' already" in done.err
    assert len(schedules(vertex_api)) == 1


def test_a_schedule_whose_answer_is_lost_is_found_not_made_again(vertex_api: VertexApi, tmp_path: Path) -> None:
    vertex_api.fail_next("POST .*/schedules$", 0, took_effect=True)
    done = create(vertex_api, tmp_path, *DAILY)
    assert done.status == 0, done.err
    assert len(schedules(vertex_api)) == 1


def test_a_schedule_that_may_come_yet_is_not_asked_for_twice(vertex_api: VertexApi, tmp_path: Path) -> None:
    vertex_api.fail_next("POST .*/schedules$", 503)
    done = create(vertex_api, tmp_path, *DAILY)
    assert done.status == 2
    assert "The service is currently unavailable." in done.err
    assert "Look again with gpu-pipelines schedule list" in done.err
    assert not schedules(vertex_api)


@pytest.mark.parametrize("words", [["pause"], ["delete"], ["update", "--max-runs", "7"]])
def test_a_change_whose_answer_is_lost_is_made_again(vertex_api: VertexApi, tmp_path: Path, words: list[str]) -> None:
    create(vertex_api, tmp_path, *DAILY)
    vertex_api.fail_next("(POST|PATCH|DELETE) .*/schedules/", 0, took_effect=True)
    done = command(vertex_api, tmp_path, "schedule", words[0], "nightly", *words[1:])
    assert done.status == 0, done.err
    found = [(schedule.state.name, schedule.max_run_count) for schedule in schedules(vertex_api)]
    assert found == {"pause": [("PAUSED", 0)], "delete": [], "update": [("ACTIVE", 7)]}[words[0]]


def test_what_the_service_made_of_it_is_compared_field_by_field() -> None:
    asked = {
        "displayName": "nightly",
        "maxRunCount": "5",
        "startTime": "2098-01-01T00:00:00Z",
        "createPipelineJobRequest": {
            "parent": "projects/example-project/locations/us-central1",
            "pipelineJob": {
                "runtimeConfig": {"gcsOutputDirectory": "gs://b/r", "parameterValues": {"a": 2, "b": [1]}},
                "templateUri": "https://us-kfp.pkg.dev/p/r/sum/sha256:1",
                "pipelineSpec": {"root": {"dag": {}}},
            },
        },
    }
    found = json.loads(json.dumps(asked))
    # What the service adds, and writes in its own way, is no difference.
    found |= {"name": "projects/1/locations/us-central1/schedules/2", "state": "ACTIVE", "maxRunCount": 5}
    found["createPipelineJobRequest"]["parent"] = "projects/1/locations/us-central1"
    job = found["createPipelineJobRequest"]["pipelineJob"]
    job["runtimeConfig"]["parameterValues"]["a"] = 2.0
    del job["pipelineSpec"]
    assert differences(asked, found) == []
    job["runtimeConfig"]["parameterValues"]["a"] = 3
    job["templateUri"] = "https://us-kfp.pkg.dev/p/r/sum/sha256:2"
    del found["startTime"]
    place = "createPipelineJobRequest.pipelineJob"
    assert sorted(differences(asked, found)) == [
        f'{place}.pipelineSpec is missing, not {{"root": {{"dag": {{}}}}}}',
        f"{place}.runtimeConfig.parameterValues.a is 3.0, not 2.0",
        f'{place}.templateUri is "https://us-kfp.pkg.dev/p/r/sum/sha256:2", not "https://us-kfp.pkg.dev/p/r/sum/sha256:1"',
        'startTime is missing, not "2098-01-01T00:00:00Z"',
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cron", "0 3 * *"], "has 4 fields; a cron expression has five"),
        (["--cron", "0 24 * * *"], "never comes due: [0 24 * * *] is not acceptable, out of range"),
        (["--cron", "@daily"], "has 1 fields"),
        (["--cron", "0 0 31 2 *"], "never comes due"),
        (["--cron", "0 0 L * *"], "'L' is not valid for the day of the month"),
        (["--cron", "0 5-1 * * *"], "'5-1' is not valid for the hour"),
        (["--cron", "*/0 * * * *"], "'*/0' is not valid for the minute"),
        ([*DAILY[:2], "--time-zone", "Europe/Pariss"], "There is no time zone 'Europe/Pariss'"),
        ([*DAILY[:2], "--time-zone", "../UTC"], "There is no time zone '../UTC'"),
        (
            ["--cron", "TZ=UTC 0 3 * * *", "--time-zone", "Asia/Tokyo"],
            "the time zone UTC, and Asia/Tokyo was given",
        ),
        ([*DAILY, "--start", "soon"], "--start is 'soon', which is not a time"),
        ([*DAILY, "--start", "2098-01-02", "--end", "2098-01-01"], "is not after --start"),
        ([*DAILY, "--end", "2020-01-01"], "nothing would ever run"),
        ([*DAILY, "--start", "9999-12-31T23:59:59Z"], "nothing would ever run"),
        ([*DAILY, "--start", "0001-01-01"], "--start is '0001-01-01', which is not a time"),
        ([*DAILY, "--max-runs", str(2**63)], "--max-runs is 9,223,372,036,854,775,808; the most is"),
        ([*DAILY, "--max-concurrent", str(2**63)], "--max-concurrent is 9,223,372,036,854,775,808; the most is"),
        ([*DAILY, "--name", " "], "The name of the schedule is empty."),
        ([*DAILY, "--name", "n" * 129], "The display name can be up to 128 characters long."),
        ([*DAILY, "--name", "2027"], "The name 2027 would be read as an id."),
        ([*DAILY, "-p", "b=1"], "There is no parameter 'b'"),
        ([*DAILY, "-p", "a=x"], "a takes a whole number"),
    ],
)
def test_a_wrong_schedule_is_refused(vertex_api: VertexApi, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = create(vertex_api, tmp_path, *arguments)
    assert done.status == 2
    assert message in done.err
    assert not schedules(vertex_api)


def test_a_pipeline_that_is_not_there_is_refused(vertex_api: VertexApi, tmp_path: Path) -> None:
    for what, message in (
        ("sum", "Package sum is not found"),
        ("sum/Tag", "names no pipeline of a repository"),
        ("https://us-kfp.pkg.dev/p", "is not the address of a pipeline"),
    ):
        done = command(vertex_api, tmp_path, "schedule", "create", what, "--name", "n", *DAILY)
        assert done.status == 2
        assert message in done.err
    command(vertex_api, tmp_path, "upload", str(compiled_sum(tmp_path)), "--tag", "stable", "--tag", "blue")
    done = command(vertex_api, tmp_path, "schedule", "create", "sum", "--name", "n", *DAILY)
    assert "tags/latest is not found.\n  sum has the tags blue, stable: name one, as in sum/blue." in done.err


def test_times_are_those_of_the_zone_over_the_change_of_clocks() -> None:
    cron = parse_cron("30 3 * * 0", "Europe/Paris")
    start = parse_time("2098-03-28", cron.zone, "--start")
    assert [shown_time(time) for time in next_times(cron, start, None, 2)] == [
        "2098-03-30 03:30 CEST (2098-03-30 01:30 UTC)",
        "2098-04-06 03:30 CEST (2098-04-06 01:30 UTC)",
    ]
    assert shown_time(start.astimezone(timezone.utc)) == "2098-03-27 23:00 UTC"
    assert next_times(cron, start, start + timedelta(days=1)) == []
    assert parse_time("2098-03-28T10:00Z", cron.zone, "--start").utcoffset() == timedelta(0)
    with pytest.raises(UserError, match="not a time"):
        parse_time("28.3.2098", cron.zone, "--start")
    assert parse_time(datetime(2098, 3, 28), cron.zone, "--start") == start
    assert parse_time(start.astimezone(timezone.utc), cron.zone, "--start") == start


def test_a_range_of_one_number_is_that_number() -> None:
    start, end = parse_time("2098-01-01", "UTC", "--start"), parse_time("2099-01-01", "UTC", "--end")
    for text, single in (("0 3 * * 1-1", "0 3 * * 1"), ("5-5/2,7-7 3-3 1 11-11 *", "5,7 3 1 11 *")):
        due = list(parse_cron(single).times(start, end))
        assert list(parse_cron(text).times(start, end)) == due
        assert following(text, start) == due[0]
