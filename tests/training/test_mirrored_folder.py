"""What a script writes to its folder is in the bucket, whenever it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.script import mirrored_folder
from gpu_pipelines.training.script.mirrored_folder import MirroredFolder


@pytest.fixture
def bucket(tmp_path: Path) -> RemoteFolder:
    return RemoteFolder(f"memory://{tmp_path.name}/run")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrored_folder, "_SECONDS_BETWEEN_LOOKS", 0.02)


def put(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def comes(true: Callable[[], bool]) -> bool:
    for _ in range(500):
        if true():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.usefixtures("quick")
def test_files_are_copied_and_deleted_while_the_work_goes_on(tmp_path: Path, bucket: RemoteFolder) -> None:
    bucket.write("writer.json", b"lock")
    bucket.write("checkpoint-1/rng-of-another-node", b"x")
    with MirroredFolder(bucket.uri, tmp_path / "here"):
        assert not (tmp_path / "here" / "writer.json").exists()
        put(tmp_path / "here" / "checkpoint-2" / "weights")
        assert comes(lambda: "checkpoint-2/weights" in bucket.names())
        put(tmp_path / "here" / "checkpoint-2" / "weights", "more")
        assert comes(lambda: bucket.read("checkpoint-2/weights") == b"more")
        (tmp_path / "here" / "checkpoint-2" / "weights").unlink()
        assert comes(lambda: "checkpoint-2/weights" not in bucket.names())
    assert bucket.names() == ["checkpoint-1/rng-of-another-node", "writer.json"]


def test_what_is_written_last_is_copied_though_the_work_fails(tmp_path: Path, bucket: RemoteFolder) -> None:
    def fails() -> None:
        put(tmp_path / "here" / "checkpoint-3" / "weights")
        raise UserError("it failed")

    with pytest.raises(UserError, match="it failed"), MirroredFolder(bucket.uri, tmp_path / "here"):
        fails()
    assert bucket.names() == ["checkpoint-3/weights"]


def test_metrics_are_copied_though_they_never_rest_and_nothing_else_is(tmp_path: Path, bucket: RemoteFolder) -> None:
    mirror = MirroredFolder(bucket.uri, tmp_path)
    put(tmp_path / "metrics.jsonl")
    put(tmp_path / "last.ckpt")
    mirror._copy()
    assert bucket.names() == ["metrics.jsonl"]
    mirror._copy()
    assert bucket.names() == ["last.ckpt", "metrics.jsonl"]


@pytest.mark.usefixtures("quick")
def test_half_a_checkpoint_is_not_taken_for_the_newest(
    tmp_path: Path, bucket: RemoteFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    class KilledError(Exception):
        """In place of a machine that goes."""

    def killed(name: str, state: object) -> None:
        if name.endswith("state"):
            raise KilledError

    bucket.write("checkpoint-1/weights", b"x")
    bucket.write("nccl/nccl-rank-0", b"of no use to a script")
    cut_off = MirroredFolder(bucket.uri, tmp_path / "second", node=1)
    cut_off._upload = killed  # type: ignore[method-assign]
    with pytest.raises(KilledError), cut_off:
        put(tmp_path / "second" / "checkpoint-2" / "state")
    capsys.readouterr()
    with MirroredFolder(bucket.uri, tmp_path / "third"):
        assert [path.name for path in (tmp_path / "third").iterdir()] == ["checkpoint-1"]
        assert f"{bucket.uri}/checkpoint-2 is left out" in capsys.readouterr().out
