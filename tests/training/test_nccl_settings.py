"""NCCL's settings come from the machine's own script, and those that are set already stay."""

import os
from pathlib import Path

import pytest

from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.errors import UserError
from gpu_pipelines.training import train
from gpu_pipelines.training.nccl_settings import adopt_nccl_settings


def test_the_variables_of_the_script_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "set env.sh"
    script.write_text(
        "echo setting up\n"
        "export NCCL_NET=gIB\n"
        "export NCCL_DEBUG=WARN\n"
        "export UNRELATED=1\n"
        'export LD_LIBRARY_PATH="/usr/local/gib/lib64:$LD_LIBRARY_PATH"\n'
    )
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    # So that it is taken away again after the test.
    monkeypatch.setenv("NCCL_NET", "")
    monkeypatch.delenv("NCCL_NET")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    assert adopt_nccl_settings(script) == ["LD_LIBRARY_PATH", "NCCL_NET"]
    assert os.environ["NCCL_NET"] == "gIB"
    assert os.environ["NCCL_DEBUG"] == "INFO"
    assert os.environ["LD_LIBRARY_PATH"] == "/usr/local/gib/lib64:/mine"
    assert "UNRELATED" not in os.environ


def test_a_script_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "set.sh"
    script.write_text("echo no such device >&2\nfalse\n")
    with pytest.raises(UserError, match="no such device"):
        adopt_nccl_settings(script)


def test_without_a_script_nothing_is_set(tmp_path: Path) -> None:
    assert adopt_nccl_settings(tmp_path / "none.sh") == []


def test_the_profile_beside_the_libraries_is_taken_where_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nccl-env-profile.sh").write_text("export NCCL_FASTRAK_IFNAME=eth1\n")
    monkeypatch.setenv("NCCL_LIB_DIR", str(tmp_path))
    monkeypatch.setenv("NCCL_FASTRAK_IFNAME", "")
    monkeypatch.delenv("NCCL_FASTRAK_IFNAME")
    assert adopt_nccl_settings() == ["NCCL_FASTRAK_IFNAME"]


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
    monkeypatch.setattr(train, "_MOST_BYTES_OF_A_DUMP", 10)
    for name, content in (("rank-8", b"a dump"), ("rank-9", b"much too large"), ("rank-of-another", b"")):
        (disk / f"nccl-{name}").write_bytes(content)
        os.utime(disk / f"nccl-{name}", (1e10, 1e10))
    with pytest.raises(UserError, match="it hung"), train._dumps_kept(store):
        raise UserError("it hung")
    assert [path.read_bytes() for path in (tmp_path / "run" / "nccl").iterdir()] == [b"a dump"]
    assert published == ["nccl/nccl-rank-8"]
    assert capsys.readouterr().out == f"what NCCL did last is in {tmp_path}/run/nccl\n"
