"""Reading checkpoints: tensors only, all keys or none, and no code from a file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from gpu_pipelines.errors import UserError
from gpu_pipelines.recipes.checkpoint_state import load_weights


def save(path: Path, state: dict[str, object]) -> None:
    dcp.save(state, checkpoint_id=path, no_dist=True)


def test_weights_come_back_to_the_bit(tmp_path: Path) -> None:
    saved, read = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    save(tmp_path, {"model": saved.state_dict(), "optimizer": {"weight": {"exp_avg": torch.ones(3, 5)}}})
    load_weights(read, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), read.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_precision_can_be_read(tmp_path: Path, dtype: torch.dtype) -> None:
    saved, read = torch.nn.Linear(5, 3, dtype=dtype), torch.nn.Linear(5, 3, dtype=dtype)
    save(tmp_path, {"model": saved.state_dict()})
    load_weights(read, tmp_path)
    assert torch.equal(saved.weight, read.weight)


def test_a_missing_or_unexpected_key_is_an_error_that_names_it(tmp_path: Path) -> None:
    save(tmp_path, {"model": {"weight": torch.ones(3, 5), "scale": torch.ones(3)}})
    with pytest.raises(UserError, match=r"lacks model\.bias.*does not have model\.scale"):
        load_weights(torch.nn.Linear(5, 3), tmp_path)


class _RunsACommand:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def test_an_index_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "step", {"model": torch.nn.Linear(5, 3).state_dict()})
    (tmp_path / "step" / ".metadata").write_bytes(pickle.dumps(_RunsACommand()))
    with pytest.raises(UserError, match="which no checkpoint of tensors needs"):
        load_weights(torch.nn.Linear(5, 3), tmp_path / "step")
    assert not (tmp_path / "executed").exists()


def test_values_that_are_not_tensors_are_refused(tmp_path: Path) -> None:
    save(tmp_path, {"model": torch.nn.Linear(5, 3).state_dict(), "extra": {"payload": _RunsACommand}})
    with pytest.raises(UserError, match="BytesStorageMetadata"):
        load_weights(torch.nn.Linear(5, 3), tmp_path)


def test_a_truncated_index_is_said_to_be_damaged(tmp_path: Path) -> None:
    save(tmp_path, {"model": torch.nn.Linear(5, 3).state_dict()})
    index = tmp_path / ".metadata"
    index.write_bytes(index.read_bytes()[:40])
    with pytest.raises(UserError, match="damaged"):
        load_weights(torch.nn.Linear(5, 3), tmp_path)
