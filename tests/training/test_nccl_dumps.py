"""What NCCL wrote down of a training that hung outlives the machine."""

import os
from pathlib import Path

import pytest

from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.errors import UserError
from gpu_pipelines.training import nccl_dumps


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
