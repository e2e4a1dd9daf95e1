"""NCCL's settings come from the machine's own script, and those that are set already stay."""

import os
from pathlib import Path

import pytest

from gpu_pipelines.errors import UserError
from gpu_pipelines.training.machine.nccl_settings import adopt_nccl_settings


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
