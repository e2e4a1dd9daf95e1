"""What NCCL wrote down of a training that hung outlives the machine."""

import os
from pathlib import Path

import pytest

from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.machine import nccl_dumps
from gpu_pipelines.training.script.run import run_script
from gpu_pipelines.training.script.settings import ScriptSettings

HANGS = """
import os
open(os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + "0", "w").write("a dump")
raise SystemExit(1)
"""


def test_what_nccl_wrote_down_of_this_training_is_kept_beside_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, published = tmp_path / "disk", list[str]()
    disk.mkdir()
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", f"{disk}/nccl-rank-")
    (disk / "nccl-rank-0").write_bytes(b"of an earlier training")
    os.utime(disk / "nccl-rank-0", (1.0, 1.0))
    store = CheckpointStore(str(tmp_path / "run"), tmp_path)
    monkeypatch.setattr(store, "publish", published.extend)
    monkeypatch.setattr(nccl_dumps, "_MOST_BYTES_OF_A_DUMP", 10)
    for name, content in (("rank-8", b"a dump"), ("rank-9", b"much too large"), ("rank-of-another", b"")):
        (disk / f"nccl-{name}").write_bytes(content)
        os.utime(disk / f"nccl-{name}", (1e10, 1e10))
    with pytest.raises(UserError, match="it hung"), nccl_dumps.dumps_kept(store):
        raise UserError("it hung")
    assert [path.read_bytes() for path in (tmp_path / "run" / "nccl").iterdir()] == [b"a dump"]
    assert published == ["nccl/nccl-rank-8"]
    assert capsys.readouterr().out == f"what NCCL did last is in {tmp_path}/run/nccl\n"


def test_what_nccl_wrote_down_of_a_script_is_kept_and_not_of_a_training_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with nccl_dumps.dumps_kept(CheckpointStore(str(tmp_path / "beside"), tmp_path)):
        beside = Path(os.environ.pop("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") + "1")
        beside.write_bytes(b"another's")
        os.utime(beside, (1e10, 1e10))
        hang(tmp_path)
    assert [path.name for path in (tmp_path / "run" / "nccl").iterdir()] == ["nccl-rank-0"]
    assert (tmp_path / "run" / "nccl" / "nccl-rank-0").read_text() == "a dump"
    assert "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in os.environ


def hang(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HANGS)
    settings = ScriptSettings(script=str(tmp_path / "script.py"), launcher="plain")
    with pytest.raises(UserError):
        run_script(settings, tmp_path, str(tmp_path / "run"))
