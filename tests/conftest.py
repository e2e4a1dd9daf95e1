"""Fixtures: the command line as a user runs it, small data sets, and one real run of the pipeline for all tests."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socketserver
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Several tests run at the same time, and of models so small further threads only wait for each other, busily. NumPy
# reads it when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import yaml
from filelock import FileLock
from PIL import Image

from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.garbage import collect_rarely

if TYPE_CHECKING:
    from bigquery_api.server import BigQueryApi
    from compute_api import ComputeApi
    from kfp_api.server import KfpApi
    from kubernetes_api.server import KubernetesApi

    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi

#: Their files take minutes. Begun last, they would leave all workers but one with nothing to do (pytest -n 4).
LONGEST = ("pipeline", "training")
TRAINED_ALONE = ("evaluation", "own_pipelines", "pipeline", "registry", "serving", "targets", "tasks", "training")

# Output is as wide as it needs to be, wherever the tests are started.
os.environ.pop("COLUMNS", None)
# The readline that pytest imports sets it as well, past os.environ.
os.unsetenv("COLUMNS")
# A shell lets what it runs in the background ignore SIGINT, and what that starts would.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Google's and KFP's libraries and PyTorch make millions of objects.
collect_rarely()
# KFP reads each component and each compiled file in Python, where libyaml takes a tenth of the time.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]
# Each object of the clients of Kubernetes and KFP sets the levels of two loggers, which have these levels already, and
# logging forgets what it knows of all loggers: milliseconds, among the thousands that the imports of tests make.
_set_level = logging.Logger.setLevel


def _set_another_level(logger: logging.Logger, level: int | str) -> None:
    if level != logger.level:
        _set_level(logger, level)


logging.Logger.setLevel = _set_another_level  # type: ignore[method-assign]
GPU_PIPELINES = Path(sys.executable).with_name("gpu-pipelines")
PIPELINE = "train_evaluate_upload"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Variants that `slow_but_for` does not name are slow; each that it names has to be there.

    The longest tests come first, but of those that wait for `digits_run` one file alone, which makes it. The other
    files are mixed: those of some folders wait for servers, and the processors are free while all workers have one.
    """
    variants: dict[tuple[Path, str], set[str]] = {}
    for item in items:
        quick = item.get_closest_marker("slow_but_for")
        if not (isinstance(item, pytest.Function) and quick):
            continue
        unknown = variants.setdefault((item.path, item.originalname), set(quick.args))
        unknown.discard(item.callspec.id)
        if item.callspec.id not in quick.args:
            item.add_marker(pytest.mark.slow)
    if not any("::" in argument for argument in config.args):
        for (path, name), unknown in variants.items():
            if unknown:
                raise pytest.UsageError(f"{path}::{name} has no variant {', '.join(sorted(unknown))} (slow_but_for)")
    waiting = dict.fromkeys(item.path for item in items if "digits_run" in getattr(item, "fixturenames", ()))
    first = next(iter(waiting), None)
    turns = dict.fromkeys(waiting, 2) | {first: 0}

    def turn(item: pytest.Item) -> tuple[int, int]:
        number = turns.get(item.path, 1 if item.path.parent.name in LONGEST else 3)
        return number, zlib.crc32(item.path.name.encode()) if number == 3 else 0

    items.sort(key=turn)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What the imports of all tests make is no garbage: it is not looked at meanwhile, nor again, nor at the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """What is forked has all that the tests import, in this process once: there are no threads yet."""
    if session.testscollected and not session.config.option.collectonly:
        from forked import serve_copies

        serve_copies()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Lets PyTorch compute with one thread again, where a prediction in this process took all cores."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@dataclass(frozen=True)
class Finished:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str


def gpu_pipelines(*arguments: str, cwd: Path, apart: bool = False) -> Finished:
    """Runs a command.

    Args:
        arguments: as on the command line.
        cwd: where it runs.
        apart: as it is installed, in a process of its own, which reads the environment anew and imports everything, for
            a second. Else in this process; the steps of a pipeline have processes of their own in either case.
    """
    if not apart:
        from command_line import command

        return command(*arguments, cwd=cwd)
    done = subprocess.run(
        [str(GPU_PIPELINES), *arguments], cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def set_variables(patch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    """Sets variables of the environment, such as those by which Google's libraries find a server of the tests."""
    for name, value in variables.items():
        patch.setenv(name, value)


def printed_by(program: str, cwd: Path | None = None) -> str:
    """What a program prints in an interpreter of its own."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=cwd).stdout


def run_pipeline(cwd: Path, *arguments: str, apart: bool = False, **parameters: Any) -> Finished:
    """Runs the pipeline with parameters; `arguments` are further flags, `apart` as for `gpu_pipelines`.

    Without the smoke test, which takes seconds; `digits_run` has it, and tests/serving.
    """
    without = {"smoke_test": False, **parameters}
    given = [part for name, value in without.items() for part in ("-p", f"{name}={value}")]
    return gpu_pipelines("run", PIPELINE, *given, *arguments, cwd=cwd, apart=apart)


def newest_run(cwd: Path) -> dict[str, Any]:
    """`run.json` of the newest run, with its directory under `directory`."""
    path = max(cwd.glob("runs/*/run.json"), key=lambda file: file.stat().st_mtime_ns)
    return {**json.loads(path.read_text()), "directory": path.parent}


def write_photos(folder: Path, per_class: int = 40, classes: tuple[str, ...] = ("blue", "red"), seed: int = 0) -> Path:
    """Noisy colour images of two sizes, one sub-folder per class; the class is the prevailing colour."""
    generator = np.random.default_rng(seed)
    tones = {"blue": (40, 40, 190), "red": (190, 40, 40), "green": (40, 190, 40)}
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            height, width = ((24, 32), (40, 24))[number % 2]
            noise = generator.normal(0, 40, (height, width, 3))
            pixels = np.clip(np.array(tones[name]) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.png")
    return folder


@contextmanager
def storage_emulator(bucket: str) -> Iterator[str]:
    """A Cloud Storage emulator with one bucket, which Google's clients talk to meanwhile; gives the bucket's URI."""
    from gcp_storage_emulator import server as emulator

    from gpu_pipelines.emulator.storage.preconditions import CheckingRouter

    port = free_port()
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket=bucket)
    with pytest.MonkeyPatch.context() as patch:
        # It answers one after another; of more than five that wait the kernel lets the rest try again seconds later.
        patch.setattr(socketserver.TCPServer, "request_queue_size", 128)
        server.start()
        try:
            patch.setattr(emulator, "Router", CheckingRouter)
            patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
            yield f"gs://{bucket}"
        finally:
            server.stop()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URI of a bucket of the module's own, which Google's clients talk to meanwhile."""
    with storage_emulator("bucket") as uri:
        yield uri


@pytest.fixture
def compute_api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ComputeApi]:
    """A server that stands in for Compute Engine, which gcloud talks to meanwhile."""
    from compute_api import serving

    with serving() as api:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", f"{api.address}/compute/v1/")
        monkeypatch.setenv("CLOUDSDK_AUTH_DISABLE_CREDENTIALS", "true")
        yield api


@pytest.fixture
def kubernetes_api(tmp_path: Path) -> Iterator[KubernetesApi]:
    """A server that stands in for a cluster, with the rights that the documents give a run."""
    from step_on_nodes import limited_api

    with limited_api(tmp_path / "cluster") as api:
        yield api


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """What is mounted in all pods."""
    folder = tmp_path / "claim"
    folder.mkdir()
    return folder


@pytest.fixture
def kfp_api() -> Iterator[KfpApi]:
    """A server that stands in for Kubeflow Pipelines."""
    from kfp_api.server import serving

    with serving() as api:
        yield api


@pytest.fixture(scope="session")
def certificates_of_google(vertex_certificates: Certificates) -> Certificates:
    """Those of the plugin, for servers that run nothing: clients, which talk to Google alone, trust nobody else.

    All authorities of a machine take 16 ms to read, for each connection.
    """
    return replace(vertex_certificates, trusted=vertex_certificates.authority)


@pytest.fixture
def vertex_api(tmp_path_factory: pytest.TempPathFactory, certificates_of_google: Certificates) -> Iterator[VertexApi]:
    """A server of the test's own, with nothing in it, that runs nothing."""
    from gpu_pipelines.emulator.server import serving

    with serving(tmp_path_factory.mktemp("vertex"), certificates_of_google) as api:
        api.state.keeps_requests = True
        yield api


@pytest.fixture(scope="module")
def bigquery_server(certificates_of_google: Certificates) -> Iterator[BigQueryApi]:
    """A server that speaks BigQuery's API to the clients of this process."""
    from bigquery_api.server import serving

    with serving(certificates_of_google) as api, pytest.MonkeyPatch.context() as patch:
        set_variables(patch, api.environment())
        yield api


@pytest.fixture(autouse=True, scope="module")
def one_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of a part train in one process, which starts in half the time of two; those about several say so."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in TRAINED_ALONE:
            patch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:1")
        yield


@pytest.fixture(autouse=True, scope="module")
def written_modules_are_forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Modules that the tests of a file have written and imported; another file may write one of that name."""
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__dict__", {}).get("__file__")).startswith(written):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def sdk_forgets() -> Iterator[None]:
    """Google's SDK, which keeps the address of a server for the whole process, has none after a test."""
    yield
    if initializer := sys.modules.get("google.cloud.aiplatform.initializer"):
        initializer.global_config.__init__()


@pytest.fixture
def no_project_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is known of a project: by no variable, by no configuration of gcloud, by no file."""
    from gpu_pipelines.project_settings import VARIABLES

    for variables in VARIABLES.values():
        for name in variables:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("CLOUDSDK_ACTIVE_CONFIG_NAME", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset for regression, which the tests of trainings share: nothing writes to it."""
    from trainings import numbers_dataset

    return numbers_dataset(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of images, which the tests of trainings share: nothing writes to it."""
    from trainings import photos_dataset

    return photos_dataset(tmp_path_factory.mktemp("photos"))


class SmallDatasets(dict[str, Path]):
    """Datasets of images, of text (`lm`) and of labelled texts, prepared when they are asked for.

    Args:
        folder: gets them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Path:
        from trainings import photos_dataset

        from gpu_pipelines.data.prepare import prepare_data
        from gpu_pipelines.data.settings import PrepareSettings

        place = self._folder / name
        if name == "images":
            self[name] = photos_dataset(place, 32)
            return self[name]
        source, task = {"lm": ("documentation", "causal_lm"), "texts": ("docstrings", "text_classification")}[name]
        settings = PrepareSettings(source=f"sample:{source}", task=task, sequence_length=32, vocabulary_size=600)
        prepare_data(settings, place)
        self[name] = place
        return place


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> SmallDatasets:
    """Datasets that the tests of trainings share: nothing writes to them."""
    return SmallDatasets(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A directory in which the pipeline ran once with its defaults, on the digits; the same for all workers.

    It trains in one process: two would cost as much again for their start.
    """
    own = tmp_path_factory.getbasetemp()
    cwd = (own if worker_id == "master" else own.parent) / "digits"
    with FileLock(f"{cwd}.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:1")
        if not (cwd / "printed.txt").exists():
            cwd.mkdir(exist_ok=True)
            done = gpu_pipelines("run", PIPELINE, cwd=cwd, apart=True)
            assert done.status == 0, done.out + done.err
            (cwd / "printed.txt").write_text(done.out)
    return cwd


@pytest.fixture(scope="module")
def group_of_one() -> Iterator[None]:
    """This process is a group of processes for itself."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry in a real server of MLflow that files go through."""
    from mlflow_server import mlflow_server

    with mlflow_server(tmp_path_factory.mktemp("mlflow"), takes_files=True) as address:
        yield f"mlflow:{address}"
