"""A search on Kubeflow as an Experiment of Katib, against a server that runs its trials as TrainJobs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driver import CompiledFile
from forked import Forked
from kubernetes_api.experiments import Experiment, problems_of_experiment
from kubernetes_api.server import KATIB, TRAINER, KubernetesApi
from kubernetes_api.train_jobs import behind_a_shell
from step_on_nodes import NO_IMAGE, SECONDS_BETWEEN_LOOKS, WORKFLOW, launched, says_once, spec_on, until

from gpu_pipelines.accelerators import plan
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.kubeflow.in_cluster.experiment_manifest import command_of_trial, experiment_of
from gpu_pipelines.targets.kubeflow.placement.pods import QUEUE_LABEL
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest, TrainJobSpec
from gpu_pipelines.targets.kubeflow.target import KubeflowTarget
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.service.begin import begin
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.service.finish import finish
from gpu_pipelines.tuning.service.records import RUNNING, Record, Records
from gpu_pipelines.tuning.service.study import ServiceStudy, values_of
from gpu_pipelines.tuning.settings import TuningSettings
from gpu_pipelines.tuning.space import space_in
from gpu_pipelines.tuning.study import SearchPlan, StudyRequest

PIPELINE = "tune_train_evaluate_upload"
SPACE = """
learning_rate: {type: float, low: 1e-3, high: 1e-2, log: true}
optimizer: {type: categorical, choices: [adamw, sgd]}
momentum: {type: float, low: 0.5, high: 0.9, when: {optimizer: sgd}}
global_batch_size: {type: categorical, choices: [16, 32]}
warmup_steps: {type: int, low: 0, high: 4, step: 2}
"""


def study_of(reduction: int = 3) -> ServiceStudy:
    base = TrainingSettings(model="mlp-small")
    plan = SearchPlan(base, space_in(SPACE), 6, 2, 7, "tpe", reduction)
    return ServiceStudy(StudyRequest.of(plan, "d", "regression", 90))


def experiment(spec: TrainJobSpec, reduction: int = 3) -> dict[str, Any]:
    study = study_of(reduction)
    job = JobRequest("study-1", spec, command_of_trial(study, "/mnt/study"), {}, WORKFLOW)
    return experiment_of(job, study, "ClusterTrainingRuntime")


def test_an_experiment_is_what_its_study_says(tmp_path: Path) -> None:
    spec = spec_on(tmp_path)
    made = experiment(spec)
    assert problems_of_experiment(made) == []
    found = {each["name"]: each for each in made["spec"]["parameters"]}
    assert found["learning_rate"]["feasibleSpace"] == {"min": "0.001", "max": "0.01", "distribution": "logUniform"}
    assert (found["optimizer"]["parameterType"], found["global_batch_size"]["parameterType"]) == (
        "categorical",
        "discrete",
    )
    assert found["warmup_steps"]["feasibleSpace"] == {"list": ["0", "2", "4"]}
    assert made["spec"]["algorithm"]["algorithmName"] == "tpe"
    assert made["spec"]["algorithm"]["algorithmSettings"] == [{"name": "random_state", "value": "7"}]
    assert made["spec"]["earlyStopping"]["algorithmName"] == "medianstop"
    assert "earlyStopping" not in experiment(spec, reduction=1)["spec"]
    objective = made["spec"]["objective"]
    assert (objective["type"], objective["metricStrategies"]) == ("minimize", [{"name": "val_loss", "value": "min"}])
    assert made["metadata"]["ownerReferences"] == [WORKFLOW], "it is deleted with the run"
    trial = made["spec"]["trialTemplate"]["trialSpec"]
    queued = {kind: QUEUE_LABEL in each["metadata"]["labels"] for kind, each in (("all", made), ("trial", trial))}
    assert queued == {"all": False, "trial": True}, "Katib labels the pod that chooses values as the Experiment is"
    assert (trial["kind"], trial["spec"]["trainer"]["numNodes"]) == ("TrainJob", 2)
    assert "--momentum=${trialParameters.momentum}" in trial["spec"]["trainer"]["command"][-1]
    assert made["spec"]["trialTemplate"]["primaryPodLabels"]["batch.kubernetes.io/job-completion-index"] == "0"


def test_the_words_of_a_trial_are_kept_by_the_shell_that_katib_puts_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "my study; echo $HOME"
    command = behind_a_shell(command_of_trial(study_of(), str(folder)), tmp_path / "log")
    ended = subprocess.run([command[0], command[1], command[2].replace("python3", sys.executable)])
    assert ended.returncode == 1, "the trial's own status"
    assert f"{folder} is not a study" in (tmp_path / "log").read_text()
    assert not (tmp_path / "log.pid").exists(), "Katib takes it for complete"


def test_choices_of_any_signs_get_through_katibs_template_and_the_shell(tmp_path: Path) -> None:
    choices = ["/mnt/it's mine", 'a "b" \\n', "${trialParameters.trialName} $HOME", "vit-small"]
    space = space_in(json.dumps({"model": {"type": "categorical", "choices": choices}}))
    study = replace(study_of(), request=replace(study_of().request, space=space))
    job = JobRequest("study-1", spec_on(tmp_path), command_of_trial(study, "/mnt/study"), {})
    made = experiment_of(job, study, "ClusterTrainingRuntime")
    (parameter,) = made["spec"]["parameters"]
    (tmp_path / "python3").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "python3").chmod(0o755)
    got = []
    for value in parameter["feasibleSpace"]["list"]:
        # `applyParameters` of Katib's generator.
        text = json.dumps(made["spec"]["trialTemplate"]["trialSpec"]).replace("${trialParameters.model}", value)
        command = behind_a_shell(json.loads(text)["spec"]["trainer"]["command"], tmp_path / "log")
        subprocess.run(command, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True)
        argument = (tmp_path / "log").read_text().splitlines()[-1]
        got.append(values_of(space, [argument])["model"])
    assert got == choices
    assert parameter["feasibleSpace"]["list"][-1] == "vit-small", "usual ones are as they are"


def test_what_katib_would_refuse_is_seen_here(tmp_path: Path) -> None:
    made = experiment(spec_on(tmp_path))
    made["spec"]["trialTemplate"]["trialParameters"].pop()
    made["spec"]["maxTrials"] = 3
    found = "; ".join(problems_of_experiment(made))
    assert "unknown field experiment.spec.maxTrials" in found
    assert "parameters of the template are" in found


def test_a_pipeline_has_a_step_that_creates_it_and_one_that_ends_it() -> None:
    planned = plan("l4:2", nodes=2, strategy="spot")
    file = CompiledFile(KubeflowTarget(ProjectSettings(volume_claim="data"), katib=True).text_of(PIPELINE, planned))
    container = file.container("search-by-katib")
    spec = TrainJobSpec.loads(container["args"][1])
    assert (spec.nodes, spec.needs.gpus, spec.volume_claim, spec.step) == (2, 2, "data", "trial")
    assert spec.environment["GPU_PIPELINES_ACCELERATOR"] == "l4:2"
    pod = file.pod("search-by-katib")
    assert not any("gpu" in name for name in pod["spec"]["containers"][0]["resources"]["limits"])
    assert {"train_job" in json.dumps(file.container(step)) for step in ("finish-study", "finish-study-2")} == {
        True,
        False,
    }, "only the one that trains longer has machines"


def test_without_katib_a_search_is_one_step_on_one_node() -> None:
    target = KubeflowTarget(ProjectSettings())
    assert "tune-model" in target.text_of(PIPELINE, plan("l4:2"))
    with pytest.raises(UserError, match="a search runs on one machine"):
        target.text_of(PIPELINE, plan("l4:2", nodes=2))


@pytest.fixture
def katib(kubernetes_api: KubernetesApi) -> KubernetesApi:
    kubernetes_api.apis = {TRAINER, KATIB}
    kubernetes_api.environment = {"GPU_PIPELINES_ACCELERATOR": "cpu:1", "OMP_NUM_THREADS": "1"}
    return kubernetes_api


def launcher(
    api: KubernetesApi, spec: TrainJobSpec, study: Path, job: Path, apart: bool = False
) -> Forked | subprocess.Popen[str]:
    environment = {
        **os.environ,
        "KUBECONFIG": str(api.kubeconfig),
        "GPU_PIPELINES_RUN": "run-1",
        "KFP_POD_NAME": "launcher",
        "GPU_PIPELINES_TRAIN_JOB_INTERVAL": str(SECONDS_BETWEEN_LOOKS),
    }
    arguments = ["--train-job", spec.dumps(), "--study", str(study), "--job", str(job)]
    return launched("experiment", arguments, environment, apart)


def begun(tmp_path: Path, patch: pytest.MonkeyPatch, **settings: Any) -> Path:
    """A study of trainings on a small table."""
    patch.syspath_prepend(Path(__file__).parents[1] / "training")
    from trainings import numbers_dataset

    study = tmp_path / "claim" / "study"
    given = {"model": "mlp-small", "space": SPACE, "max_steps": 18, "trials": 2, "parallel_trials": 2, **settings}
    begin(TuningSettings(**given), str(numbers_dataset(tmp_path)), str(study), processes=1)
    return study


def test_a_cluster_without_katib_is_told(katib: KubernetesApi, tmp_path: Path) -> None:
    katib.apis = {TRAINER}
    process = launcher(katib, replace(spec_on(tmp_path), nodes=1), tmp_path, tmp_path / "job", apart=True)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "The cluster has no Katib." in err


def test_a_step_that_is_started_again_waits_for_the_end_of_its_former_experiment(
    katib: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = begun(tmp_path, monkeypatch)
    name = f"study-{hashlib.sha256(f'run-1 {study}'.encode()).hexdigest()[:10]}"
    former = Experiment({**experiment(spec_on(tmp_path)), "metadata": {"name": name}}, lambda manifest: None)
    former.deleted = True
    katib.jobs[name] = former
    process = launcher(katib, replace(spec_on(tmp_path), nodes=1), study, tmp_path / "job")
    assert process.stdout
    assert "is being deleted" in process.stdout.readline()
    del katib.jobs[name]
    until(lambda: katib.experiments)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "2 trials, 2 at a time" in out) == (75, True), out + err


def test_a_budget_that_is_spent_ends_the_search_though_a_trial_was_stopped_early(
    katib: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = begun(tmp_path, monkeypatch, budget=1.0, dollars_per_hour=1.0)
    # Katib has ended it, so that it could not write that.
    Records(StudyDocuments(str(study))).write(Record("early", {}, RUNNING, seconds=3700.0, curve=((6, 0.5),)))
    name = f"study-{hashlib.sha256(f'run-1 {study}'.encode()).hexdigest()[:10]}"
    former = {**experiment(spec_on(tmp_path)), "metadata": {"name": name}}
    katib.jobs[name] = Experiment(former, lambda manifest: None)
    katib.undeletable = 2  # a control plane that does not answer just then costs no search
    process = launcher(katib, replace(spec_on(tmp_path), nodes=1), study, tmp_path / "job")
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, "the budget of 1 dollars is spent" in out) == (0, True), out + err
    until(lambda: not katib.jobs)


@pytest.mark.parametrize("is_scarce", [True, False])
def test_trials_that_do_not_start_say_why(
    katib: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_scarce: bool
) -> None:
    said = "GCE quota exceeded" if is_scarce else "no match for platform in manifest"
    katib.scarce = {"nvidia-l4 standard": said} if is_scarce else {}
    katib.held_up = NO_IMAGE
    study = begun(tmp_path, monkeypatch, trials=1, parallel_trials=1)
    says_once(launcher(katib, replace(spec_on(tmp_path), nodes=1), study, tmp_path / "job"), "study-", said)


def test_a_search_whose_algorithm_does_not_start_says_why(
    katib: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    katib.no_suggestion = {"reason": "ImagePullBackOff", "message": "no route to ghcr.io"}
    study = begun(tmp_path, monkeypatch)
    process = launcher(katib, replace(spec_on(tmp_path), nodes=1), study, tmp_path / "job")
    says_once(process, "-tpe-7d4b: ImagePullBackOff", "no route to ghcr.io")


def test_trials_whose_image_is_not_there_end_the_search(
    katib: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_UNSCHEDULABLE_SECONDS", "0.1")
    katib.held_up = NO_IMAGE
    study = begun(tmp_path, monkeypatch, trials=1, parallel_trials=1)
    process = launcher(katib, replace(spec_on(tmp_path), nodes=1), study, tmp_path / "job")
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1, out + err
    assert "error: The TrainJob study-" in err
    assert "ErrImagePull: no match for platform in manifest" in err
    until(lambda: not katib.jobs)


@pytest.mark.slow
def test_trials_are_train_jobs_whose_losses_katib_reads(
    katib: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = begun(tmp_path, monkeypatch)
    process = launcher(katib, replace(spec_on(tmp_path), nodes=1), study, tmp_path / "out" / "job")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    (made,) = katib.experiments
    assert (tmp_path / "out" / "job").read_text() == made.name
    assert f"Experiment {made.name}: 2 trials, 2 at a time" in out
    assert katib.jobs == {}, "it is cleaned up"
    result = finish(str(study), tmp_path / "report.html", Cluster())
    assert result is not None
    assert len(result.trials) == 2
    # Trials at the same time are numbered as they begin to train, which need not be as Katib created them.
    created = {trial.name: trial for trial in made.trials}
    for trial, record in zip(result.trials, Records(StudyDocuments(str(study))).all(), strict=True):
        assert made.losses_of(created[record.trial]) == [loss for _, loss in trial.curve]
        assert len(trial.curve) > 3
        assert ("momentum" in trial.parameters) == (trial.parameters["optimizer"] == "sgd")


@pytest.mark.slow
def test_a_step_that_is_told_to_stop_deletes_its_experiment_and_the_trial_saves_its_state(
    katib: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = begun(tmp_path, monkeypatch, trials=1, parallel_trials=1, max_steps=100_000, checkpoint_every_steps=100)
    records = Records(StudyDocuments(str(study)))
    process = launcher(katib, replace(spec_on(tmp_path), nodes=1), study, tmp_path / "job")
    until(lambda: any(each.curve for each in records.all()))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert "its Experiment is deleted" in err
    until(lambda: not katib.jobs)
    (left,) = records.all()
    assert left.outcome == RUNNING
    (trial,) = katib.experiments[0].trials
    assert "interrupted" in trial.log(0).read_text(), "it has saved its state"
