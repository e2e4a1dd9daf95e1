"""A pipeline of somebody's, compiled for each target: what is placed, what its author has said, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import command

import gpu_pipelines
from gpu_pipelines.accelerators import PlanError
from gpu_pipelines.component_interface.accelerate import accelerate, wish_of
from gpu_pipelines.components import train_model
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import TrainJobSpec
from gpu_pipelines.targets.own.pipeline import own_pipeline
from gpu_pipelines.targets.own.plans import plans_here

HERE = Path(__file__).parent
MINE = f"{HERE}/mine.py:mine"
SETTINGS = ("--project", "my-project-123", "--region", "europe-west4", "--pipeline-root", "gs://bucket/root")
IMAGE = ("--image", "europe-docker.pkg.dev/p/r/steps:1")

pytestmark = pytest.mark.usefixtures("no_project_settings")


def compiled(tmp_path: Path, *arguments: str, pipeline: str = MINE) -> list[dict[str, Any]]:
    done = command("compile", pipeline, *arguments, "-o", str(tmp_path / "out.yaml"))
    assert done.status == 0, done.err
    return list(yaml.load_all((tmp_path / "out.yaml").read_text(), Loader=yaml.CSafeLoader))


def pools(spec: dict[str, Any], step: str) -> list[dict[str, Any]]:
    inputs = spec["components"][f"comp-{step}"]["inputDefinitions"]["parameters"]
    return inputs["worker_pool_specs"]["defaultValue"]


def test_steps_with_accelerators_are_custom_jobs_on_the_machines_of_their_plans(tmp_path: Path) -> None:
    (spec,) = compiled(tmp_path, "--target", "vertex", "--accelerator", "count=l4:2", *IMAGE)
    (trained,) = pools(spec, "train-model")
    assert trained["machine_spec"]["machine_type"] == "g2-standard-48"
    assert trained["machine_spec"]["accelerator_count"] == 4
    assert trained["container_spec"]["image_uri"] == IMAGE[1]
    (counted,) = pools(spec, "count")
    assert counted["machine_spec"]["accelerator_type"] == "NVIDIA_L4"
    assert counted["container_spec"]["image_uri"] == "europe-docker.pkg.dev/p/r/mine:1", "its own"
    assert {"name": "MINE", "value": "yes"} in counted["container_spec"]["env"]
    assert not any("WISH" in each["name"] for each in counted["container_spec"]["env"])
    (evaluated,) = pools(spec, "evaluate-checkpoints")
    assert evaluated["machine_spec"]["accelerator_count"] == 1, "one GPU of the training's kind"
    tasks = spec["root"]["dag"]["tasks"]
    assert tasks["train-model"]["dependentTasks"] == ["count", "prepare-data"]


BY_GCPC = """
from google_cloud_pipeline_components.v1.custom_job import create_custom_training_job_from_component
from kfp import dsl

from gpu_pipelines.components import prepare_data, train_model

train = create_custom_training_job_from_component(
    train_model, machine_type="g2-standard-8", accelerator_type="NVIDIA_L4", accelerator_count=1
)


@dsl.pipeline(name="by-gcpc")
def by_gcpc(source: str = "gs://bucket/photos"):
    train(dataset=prepare_data(source=source).outputs["dataset"])
"""


def test_a_job_that_gcpc_has_made_of_a_training_of_ours_runs_in_the_given_image(tmp_path: Path) -> None:
    (tmp_path / "by_gcpc.py").write_text(BY_GCPC)
    (spec,) = compiled(tmp_path, "--target", "vertex", *IMAGE, pipeline=str(tmp_path / "by_gcpc.py"))
    (trained,) = pools(spec, "train-model")
    assert trained["container_spec"]["image_uri"] == IMAGE[1]
    assert trained["machine_spec"]["accelerator_type"] == "NVIDIA_L4", "as its author has it"


LOOKING = """
from kfp import dsl
from gpu_pipelines.components import check_for_new_data, prepare_data, train_model
from gpu_pipelines.components.request.component import check_request


@dsl.pipeline(name="looking")
def looking(source: str = "gs://bucket/rows.csv"):
    given = {"source": source, "task": "text_classification", "model": "bert-micro"}
    checked = check_request(**given)
    new = check_for_new_data(**given, source_fingerprint=checked.outputs["source_fingerprint"])
    with dsl.If(new.outputs["Output"] == True):
        prepared = prepare_data(
            source=source, task="text_classification", tokenizer=new.outputs["tokenizer"],
            source_fingerprint=checked.outputs["source_fingerprint"], advanced=checked.outputs["prepare"],
        )
        train_model(dataset=prepared.outputs["dataset"], model=new.outputs["model"])
"""


def test_steps_that_look_at_the_champion_find_it_where_the_target_registers_models(tmp_path: Path) -> None:
    """They looked into a folder of their container: each retraining was the first, with a tokenizer of its own."""
    (tmp_path / "looking.py").write_text(LOOKING)
    (spec,) = compiled(tmp_path, "--target", "vertex", "--accelerator", "l4:1", pipeline=str(tmp_path / "looking.py"))
    tasks = spec["root"]["dag"]["tasks"]
    for step in ("check-request", "check-for-new-data"):
        assert given_to(tasks, step)["registry"]["runtimeValue"]["constant"] == "vertex://"
        assert tasks[step]["cachingOptions"] == {}
    seen = {name: given_to(tasks, "check-request")[name] for name in ("place", "run_name", "storage")}
    assert [each["runtimeValue"]["constant"] for each in seen.values()] == [
        "vertex",
        "{{$.pipeline_job_resource_name}}",
        "{{$.pipeline_root}}",
    ]


def test_what_a_step_that_looks_cannot_read_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    of_now = LOOKING.replace("(**given, ", '(**given, retrain_on="drift", drift_source="./rows_of_now.csv", ')
    (tmp_path / "looking.py").write_text(of_now)
    done = command(
        "run", str(tmp_path / "looking.py"), "--target", "vertex", "--accelerator", "l4:1", *SETTINGS, *IMAGE
    )
    assert done.status == 2
    assert "./rows_of_now.csv" in done.err


def test_what_the_author_has_set_stays_and_what_they_left_open_is_filled_in(tmp_path: Path) -> None:
    (spec,) = compiled(tmp_path, "--target", "vertex", "--accelerator", "count=l4:2")
    tasks, executors = spec["root"]["dag"]["tasks"], spec["deploymentSpec"]["executors"]
    assert tasks["train-model"]["retryPolicy"]["maxRetryCount"] == 5
    assert tasks["prepare-data"]["retryPolicy"]["maxRetryCount"] == 2, "as in the pipelines of this project"
    assert executors["exec-shrink"]["container"]["resources"]["resourceCpuLimit"] == "2"
    assert executors["exec-shrink"]["container"]["image"] == "python:3.11"
    assert tasks["shrink"]["cachingOptions"] == {"enableCache": True}, "steps of their own are left as they are"
    assert tasks["prepare-data"]["cachingOptions"] == {}, "nothing would tell that the data has changed"
    given = {name: each["runtimeValue"]["constant"] for name, each in given_to(tasks, "upload-model").items()}
    assert given["registry"] == "vertex://"
    checkpoints = given_to(tasks, "train-model")["checkpoint_uri"]["runtimeValue"]["constant"]
    assert checkpoints == "{{$.pipeline_root}}/checkpoints/{{$.pipeline_job_uuid}}/train-model"


def given_to(tasks: dict[str, Any], step: str) -> dict[str, Any]:
    found = tasks[step]["inputs"]["parameters"]
    return {name: each for name, each in found.items() if "runtimeValue" in each}


def test_the_turns_of_a_loop_have_checkpoints_of_their_own(tmp_path: Path) -> None:
    (spec,) = compiled(tmp_path, "--target", "vertex", "--accelerator", "l4:1", pipeline=f"{HERE}/mine.py:seeds")
    (loop,) = [part for part in spec["components"].values() if "dag" in part]
    given = given_to(loop["dag"]["tasks"], "train-model")
    assert given["checkpoint_uri"]["runtimeValue"]["constant"].endswith("/train-model/%TRAINING%")


def test_on_kubeflow_they_are_pods_on_nodes_of_their_plans_or_train_jobs(tmp_path: Path) -> None:
    spec, platform = compiled(tmp_path, "--target", "kubeflow", "--accelerator", "count=l4:2,evaluate=t4:1")
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    labels = {step: executors[f"exec-{step}"].get("nodeSelector", {}).get("labels", {}) for step in ("count",)}
    assert labels["count"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    container = spec["deploymentSpec"]["executors"]["exec-count"]["container"]
    assert container["image"] == "europe-docker.pkg.dev/p/r/mine:1"
    assert container["resources"]["accelerator"]["resourceCount"] == "2"
    scored = executors["exec-evaluate-checkpoints"]["nodeSelector"]["labels"]
    assert scored["cloud.google.com/gke-accelerator"] == "nvidia-tesla-t4"


IN_A_POOL = """
from gpu_pipelines.components import accelerate, prepare_data, train_model
from kfp import dsl, kubernetes


@dsl.pipeline(name="pooled")
def pooled():
    trained = accelerate(train_model(dataset=prepare_data().outputs["dataset"]), "l4:1")
    kubernetes.add_node_selector(trained, "pool", "gpu")
    kubernetes.empty_dir_mount(trained, "shm", "/dev/shm", "Memory")
"""


def trained_in_a_pool(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "pooled.py").write_text(IN_A_POOL)
    _, platform = compiled(tmp_path, "--target", "kubeflow", pipeline=str(tmp_path / "pooled.py"))
    return platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train-model"]


def test_what_an_author_asks_of_nodes_is_asked_beside_what_the_plan_does(tmp_path: Path) -> None:
    labels = trained_in_a_pool(tmp_path)["nodeSelector"]["labels"]
    assert labels == {"cloud.google.com/gke-accelerator": "nvidia-l4", "pool": "gpu"}


def test_what_an_author_mounts_is_not_mounted_a_second_time(tmp_path: Path) -> None:
    mounts = trained_in_a_pool(tmp_path)["emptyDirMounts"]
    assert [each["volumeName"] for each in mounts if each["mountPath"] == "/dev/shm"] == ["shm"]


def test_the_variables_of_a_step_that_is_a_train_job_are_those_of_its_nodes(tmp_path: Path) -> None:
    image = ("--image", "europe-docker.pkg.dev/p/r/mine:1")
    count = ("--accelerator", "count=l4:2,evaluate=t4:1", "--strategy", "spot", "--env", "SAID=here")
    spec, _ = compiled(tmp_path, "--target", "kubeflow", *count, *image)
    container = spec["deploymentSpec"]["executors"]["exec-count"]["container"]
    environment = TrainJobSpec.loads(container["args"][1]).environment
    assert (environment["MINE"], environment["SAID"]) == ("yes", "here")
    assert environment["GPU_PIPELINES_ACCELERATOR"] == "l4:2"


BY_JSON = """
from gpu_pipelines.components import accelerate, prepare_data, train_model
from kfp import dsl, kubernetes


@dsl.pipeline(name="by-json")
def by_json(pool: dict = {{"pool": "gpu"}}):
    trained = accelerate(train_model(dataset=prepare_data().outputs["dataset"]), "l4:1", strategy="{strategy}")
    kubernetes.add_node_selector_json(trained, {given})
"""


def test_labels_of_nodes_as_json_do_not_take_the_place_of_those_of_the_accelerators(tmp_path: Path) -> None:
    """KFP's driver takes JSON alone where there are both."""
    file, labels = tmp_path / "by_json.py", {"cloud.google.com/gke-accelerator": "nvidia-l4", "pool": "gpu"}
    file.write_text(BY_JSON.format(strategy="standard", given='{"pool": "gpu"}'))
    _, platform = compiled(tmp_path, "--target", "kubeflow", pipeline=str(file))
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert executors["exec-train-model"]["nodeSelector"] == {"labels": labels}
    file.write_text(BY_JSON.format(strategy="spot", given='{"pool": "gpu"}'))
    spec, _ = compiled(tmp_path, "--target", "kubeflow", pipeline=str(file))
    job = TrainJobSpec.loads(spec["deploymentSpec"]["executors"]["exec-train-model"]["container"]["args"][1])
    assert job.needs.node_selector == {**labels, "cloud.google.com/gke-spot": "true"}
    for strategy, told in (("standard", "replace those of its accelerators"), ("spot", "are a parameter")):
        file.write_text(BY_JSON.format(strategy=strategy, given="pool"))
        done = command("compile", str(file), "--target", "kubeflow", "-o", str(tmp_path / "out.yaml"))
        assert (done.status, told in done.err) == (2, True), done.err


ON_SPOT = """
from gpu_pipelines.components import accelerate, prepare_data, train_model
from kfp import dsl, kubernetes


@dsl.pipeline(name="on-spot", pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
def on_spot(secret: str = "s"):
    trained = accelerate(train_model(dataset=prepare_data().outputs["dataset"]), "l4:1", strategy="spot")
    kubernetes.use_secret_as_env(trained, "huggingface", {{"token": "HF_TOKEN"}})
    kubernetes.add_node_selector(trained, "pool", "gpu")
    kubernetes.add_toleration(trained, key="team", operator="Equal", value="vision", effect="NoSchedule")
    kubernetes.empty_dir_mount(trained, "shm", "/dev/shm", "Memory")
    kubernetes.set_image_pull_secrets(trained, ["registry"])
    trained.set_cpu_request("6").set_memory_limit("20G")
    {more}
"""


def test_what_an_author_says_for_kubernetes_is_for_the_nodes_of_a_train_job(tmp_path: Path) -> None:
    (tmp_path / "on_spot.py").write_text(ON_SPOT.format(more=""))
    spec, platform = compiled(tmp_path, "--target", "kubeflow", pipeline=str(tmp_path / "on_spot.py"))
    job = TrainJobSpec.loads(spec["deploymentSpec"]["executors"]["exec-train-model"]["container"]["args"][1])
    assert (job.secrets, job.pull_secret) == ({"HF_TOKEN": "huggingface/token"}, "registry")
    assert (job.needs.node_selector["pool"], job.needs.node_selector["cloud.google.com/gke-spot"]) == ("gpu", "true")
    assert [each.key for each in job.needs.tolerations] == ["nvidia.com/gpu", "cloud.google.com/gke-spot", "team"]
    assert job.needs.tolerations[2].value == "vision"
    assert (job.needs.cpus, job.needs.memory_gib) == (6, 18)
    asked = spec["deploymentSpec"]["executors"]["exec-train-model"]["container"]["resources"]
    assert asked == {**asked, "resourceCpuRequest": "1", "resourceMemoryLimit": "2Gi", "memoryLimit": 2.147483648}
    waits = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train-model"]
    assert not {"nodeSelector", "tolerations"} & set(waits), "the pod that waits for them needs no GPU's node"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('kubernetes.mount_pvc(trained, "rows", "/mnt/rows")', "a claim of its own"),
        ("trained.set_memory_limit(secret)", "CPUs or memory that are a parameter"),
        ('kubernetes.use_config_map_as_env(trained, "c", {"k": "V"})', "variables from a ConfigMap"),
        ('kubernetes.use_secret_as_volume(trained, "c", "/c")', "a secret as a volume"),
        ('kubernetes.add_node_affinity(trained, [{"key": "a", "operator": "Exists"}])', "an affinity to nodes"),
        ('kubernetes.use_secret_as_env(trained, secret, {"k": "V"})', "whose name is a parameter"),
        ('kubernetes.add_pod_annotation(trained, "sidecar.istio.io/inject", "false")', "labels or annotations of pods"),
        ("kubernetes.set_security_context(trained, run_as_user=1000)", "a security context"),
        ('kubernetes.add_toleration(trained, key="a", operator="Exists", effect="NoExecute")', "not of NoSchedule"),
        (
            "accelerate(train_model(dataset=trained.inputs['dataset'], model=dsl.WORKSPACE_PATH_PLACEHOLDER), 'l4:1')",
            "the workspace of the run",
        ),
    ],
)
def test_what_nodes_cannot_have_is_refused_before_anything_is_sent(tmp_path: Path, more: str, told: str) -> None:
    (tmp_path / "on_spot.py").write_text(ON_SPOT.format(more=more))
    file = str(tmp_path / "on_spot.py")
    done = command("compile", file, "--target", "kubeflow", "--strategy", "spot", "-o", str(tmp_path / "out.yaml"))
    assert done.status == 2
    assert " is a TrainJob, whose nodes cannot have " in done.err
    assert told in done.err


@pytest.mark.parametrize(
    "more",
    [
        'trained.set_env_variable("PET_NNODES", "3")',
        'kubernetes.use_secret_as_env(trained, "s", {"k": "PET_NNODES"})',
    ],
)
def test_a_variable_that_trainer_sets_is_refused_where_an_author_sets_it_too(tmp_path: Path, more: str) -> None:
    (tmp_path / "on_spot.py").write_text(ON_SPOT.format(more=more))
    done = command("compile", str(tmp_path / "on_spot.py"), "--target", "kubeflow", "-o", str(tmp_path / "out.yaml"))
    assert (done.status, "Kubeflow Trainer sets PET_NNODES itself" in done.err) == (2, True), done.err


def test_a_step_of_ones_own_cannot_be_a_train_job_in_another_image(tmp_path: Path) -> None:
    done = command("compile", MINE, "--target", "kubeflow", "--accelerator", "count=l4:2", "--strategy", "spot")
    assert done.status == 2
    assert "count runs in europe-docker.pkg.dev/p/r/mine:1" in done.err
    assert "Make an image FROM" in done.err


def test_a_pipeline_is_not_written_over_by_what_it_is_compiled_to(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text((HERE / "mine.py").read_text())
    done = command("compile", f"{file}:mine", "-o", str(file))
    assert done.status == 2
    assert "Give FILE.yaml" in done.err
    with pytest.raises(UserError, match="would be a program"):
        gpu_pipelines.compile(f"{file}:mine", path=file)
    assert file.read_text() == (HERE / "mine.py").read_text()


def test_a_compiled_file_is_not_written_over_by_what_is_compiled_from_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    gpu_pipelines.compile(f"{HERE / 'mine.py'}:mine", path=file)
    before = file.read_text()
    for output in ((), ("-o", str(file))):
        done = command("compile", "mine.yaml", *output, "--accelerator", "cpu:1", cwd=tmp_path)
        assert done.status == 2
        assert "mine.yaml is the pipeline itself" in done.err
    with pytest.raises(UserError, match="Give another file"):
        gpu_pipelines.compile(str(file), path=file)
    assert file.read_text() == before
    assert command("compile", "mine.yaml", "-o", "other.yaml", cwd=tmp_path).status == 0


def test_a_file_that_was_compiled_so_runs_as_it_is(tmp_path: Path) -> None:
    compiled(tmp_path, "--target", "vertex", "--accelerator", "count=l4:2", *IMAGE)
    file = str(tmp_path / "out.yaml")
    done = command("run", file, "--target", "vertex", "--dry-run", *SETTINGS)
    assert done.status == 0, done.err
    for said in ("count: 1 × g2-standard-24 with 2 × NVIDIA_L4", "train-model: 1 × g2-standard-48"):
        assert said in done.err
    sent = json.loads(done.out)["body"]["pipelineSpec"]
    (spec,) = yaml.load_all(Path(file).read_text(), Loader=yaml.CSafeLoader)
    assert sent["deploymentSpec"] == spec["deploymentSpec"]
    assert sent["root"] == spec["root"]
    refused = command("run", file, "--target", "vertex", "--accelerator", "l4:1", *SETTINGS)
    assert "is compiled already; --accelerator cannot change it" in refused.err


def test_a_file_of_kfps_own_compiler_is_placed(tmp_path: Path) -> None:
    from kfp import compiler

    from gpu_pipelines.targets.own.file import pipeline_in

    compiler.Compiler().compile(pipeline_in(MINE), str(tmp_path / "plain.yaml"))
    arguments = ("--target", "vertex", "--dry-run", *SETTINGS, *IMAGE)
    refused = command("run", str(tmp_path / "plain.yaml"), *arguments)
    assert "count has no accelerator" in refused.err
    done = command("run", str(tmp_path / "plain.yaml"), "--accelerator", "count=l4:1", *arguments)
    assert done.status == 0, done.err
    assert "train-model: 1 × g2-standard-48 with 4 × NVIDIA_L4" in done.err


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("--target", "vertex"), ["count has no accelerator", 'accelerate(count(…), "l4:1")', "count=l4:1"]),
        (
            ("--target", "vertex", "--accelerator", "cuont=l4:1"),
            ["'cuont', which is not a step", "Did you mean 'count'"],
        ),
        (("--target", "vertex", "--accelerator", "count=l4:3"), ["count: No machine has 3 × l4"]),
        (("--target", "vertex", "--accelerator", "l4:1,t4:1"), ["names l4:1 and t4:1 for all steps"]),
        (
            ("--target", "vertex", "--accelerator", "l4:1", "--task", "causal_lm"),
            ["--task causal_lm is for pipelines of"],
        ),
    ],
)
def test_what_is_missing_or_wrong_is_said(arguments: tuple[str, ...], messages: list[str]) -> None:
    done = command("compile", MINE, *arguments)
    assert done.status == 2
    for message in messages:
        assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("target", "told"),
    [("vertex", "--accelerator l4:1 is for no step of this pipeline"), ("local", "The target local has no l4:1")],
)
def test_an_accelerator_that_no_step_takes_is_refused(target: str, told: str) -> None:
    done = command("compile", f"{HERE}/mine.py:telling", "--target", target, "--accelerator", "l4:1")
    assert done.status == 2
    assert told in done.err


def test_an_accelerator_is_not_passed_over_where_the_author_names_others_for_all_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from kfp import dsl\nfrom gpu_pipelines.components import accelerate, prepare_data, train_model\n\n"
        '@dsl.pipeline(name="own")\ndef own(source: str):\n    data = prepare_data(source=source).outputs["dataset"]\n'
        '    accelerate(train_model(dataset=data), "l4:2")\n'
    )
    target = ("--target", "vertex", *IMAGE, "-o", "own.yaml")
    refused = command("compile", "own.py", *target, "--accelerator", "t4:1")
    assert refused.status == 2
    assert "--accelerator t4:1 is for no step of this pipeline" in refused.err
    for taken in ("train-model=t4:1", "l4:2"):
        done = command("compile", "own.py", *target, "--accelerator", taken)
        assert done.status == 0, done.err
        assert ("NVIDIA_L4" in Path("own.yaml").read_text()) == (taken == "l4:2")


def test_here_the_command_says_what_is_used_in_place_of_the_gpus_of_the_author() -> None:
    steps = own_pipeline(MINE).steps
    assert plans_here(steps, "cpu:1")["train-model"].spec == "cpu:1"
    assert "train-model" not in plans_here(steps, ""), "what is here"
    with pytest.raises(UserError, match="The target local has no l4:1"):
        plans_here(steps, "l4:1")


def test_a_place_that_a_target_cannot_read_is_refused_before_anything_is_sent() -> None:
    arguments = ("--target", "vertex", "--accelerator", "l4:1", "-p", "source=/data/photos", *SETTINGS, *IMAGE)
    done = command("run", MINE, *arguments)
    assert done.status == 2
    assert "The source /data/photos is not where Vertex AI can read it" in done.err


IMPORTS = """
from kfp import dsl
@dsl.component(base_image="python:3.11", install_kfp_package=False)
def read(data: dsl.Input[dsl.Artifact]): ...
@dsl.pipeline
def imports(place: str):
    read(data=dsl.importer(artifact_uri=place, artifact_class=dsl.Artifact).output)
    with dsl.If(place != ""):
        read(data=dsl.importer(artifact_uri="HERE", artifact_class=dsl.Artifact).output)
"""


@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_an_artifact_of_this_machine_is_not_imported_elsewhere(target: str, tmp_path: Path) -> None:
    (tmp_path / "imports.py").write_text(IMPORTS.replace("HERE", str(tmp_path)))
    given = (
        "-p",
        f"place={tmp_path}",
        *(SETTINGS if target == "vertex" else ("--kubeflow-host", "http://localhost:9")),
    )
    done = command("run", "imports.py", "--target", target, *given, "--dry-run", cwd=tmp_path)
    assert done.status == 2
    assert f"The artifact of importer {tmp_path} is not where" in done.err
    assert f"The artifact of importer-2 {tmp_path} is not where" in done.err
    assert command("run", "imports.py", "-p", f"place={tmp_path}", "--dry-run", cwd=tmp_path).status == 0


@pytest.mark.parametrize(
    "target",
    [
        ("vertex", *SETTINGS),
        ("kubeflow", "--kubeflow-host", "http://127.0.0.1:9"),
        ("compute_engine", "--accelerator", "l4:1", *SETTINGS, *IMAGE),
    ],
    ids=lambda target: target[0],
)
def test_what_lists_hold_is_checked_before_anything_is_sent(tmp_path: Path, target: tuple[str, ...]) -> None:
    (tmp_path / "lists.py").write_text(
        "from typing import List\n"
        "from kfp import dsl\n"
        "@dsl.component(base_image='python:3.11')\n"
        "def add(sizes: List[int]) -> int:\n"
        "    return sum(sizes)\n"
        "@dsl.pipeline\n"
        "def lists(sizes: List[int] = [1]):\n"
        "    add(sizes=sizes)\n"
    )
    done = command("run", "lists.py", "-p", 'sizes=[1, "a"]', "--target", *target, cwd=tmp_path)
    assert done.status == 2
    assert 'sizes takes a list of whole numbers; "a" is none.' in done.err


def test_a_machine_that_does_not_exist_is_refused_where_it_is_written() -> None:
    with pytest.raises(PlanError, match="3 × l4"):
        accelerate(None, "l4:3")  # type: ignore[type-var]
    with pytest.raises(TypeError, match="machines"):
        accelerate(train_model, "l4:1", machines=2)
    for task, given, told in ((train_model, "l4:1", "takes a task; got <"), (None, 4, "as a text; got 4.")):
        with pytest.raises(UserError, match=told):
            accelerate(task, given)  # type: ignore[type-var, arg-type]


@pytest.mark.parametrize("given", ["item.name", 'f"a {item.name}"'])
def test_what_kfp_calls_an_item_is_not_taken_for_its_field_name(given: str, tmp_path: Path) -> None:
    """The step got `models-loop-item`."""
    (tmp_path / "named.py").write_text(
        "from kfp import dsl\n"
        "@dsl.component(base_image='python:3.11')\n"
        "def say(text: str, rate: float):\n"
        "    print(text)\n"
        "@dsl.pipeline\n"
        "def named(models: list = [{'name': 'small', 'rate': 0.1}]):\n"
        "    with dsl.ParallelFor(models) as item:\n"
        f"        say(text={given}, rate=item.rate)\n"
    )
    done = command("compile", "named.py", "--target", "local", "-o", "out.yaml", cwd=tmp_path)
    assert (done.status, "'models-loop-item', which is what KFP calls" in done.err) == (2, True), done.err


@pytest.mark.parametrize("given", ["given", "f'{given}:1'", "'l4:1', nodes=given", "'l4:1', hours=given"])
def test_what_is_known_when_a_pipeline_runs_chooses_no_machines(given: str, tmp_path: Path) -> None:
    """Nodes were one."""
    (tmp_path / "late.py").write_text(
        "from kfp import dsl\n"
        "from gpu_pipelines.components import accelerate, prepare_data, train_model\n"
        "@dsl.pipeline\n"
        "def late(given: int = 2):\n"
        f"    accelerate(train_model(dataset=prepare_data().outputs['dataset']), {given})\n"
    )
    done = command("compile", "late.py", "--target", "vertex", "-o", "out.yaml", cwd=tmp_path)
    assert (done.status, "'given' is known only when it runs" in done.err) == (2, True), done.err


def test_a_wish_that_nobody_can_have_written_is_no_traceback() -> None:
    for text in ("l4:1", '{"gpus": 4}', "[1]"):
        with pytest.raises(UserError, match="Only accelerate"):
            wish_of({"GPU_PIPELINES_WISH": text})
    assert wish_of({}) is None
