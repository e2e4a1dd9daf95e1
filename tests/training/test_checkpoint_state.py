"""Reading checkpoints: to the bit, all keys or none, on another number of processes, and no code from a file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks import checkpoint_state
from gpu_pipelines.tasks.checkpoint_state import StateCopy, frozen_weights_sha256, load_weights, save_state


def save(path: Path, state: dict[str, object]) -> None:
    path.mkdir(exist_ok=True)
    save_state(state, path)


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


def test_another_shape_is_an_error_that_names_it(tmp_path: Path) -> None:
    save(tmp_path, {"model": torch.nn.Linear(5, 4).state_dict()})
    with pytest.raises(UserError, match=r"other shapes of model\.bias, model\.weight"):
        load_weights(torch.nn.Linear(5, 3), tmp_path)


def test_a_truncated_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    save(tmp_path, {"model": torch.nn.Linear(5, 3).state_dict()})
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match="damaged"):
        load_weights(torch.nn.Linear(5, 3), tmp_path)


def test_files_of_other_tools_can_be_read(tmp_path: Path) -> None:
    model = torch.nn.Linear(5, 3)
    save_file({f"model.{name}": value for name, value in model.state_dict().items()}, tmp_path / "a.safetensors")
    read = torch.nn.Linear(5, 3)
    load_weights(read, tmp_path)
    assert torch.equal(model.weight, read.weight)


def test_pickles_are_not_looked_at(tmp_path: Path) -> None:
    save(tmp_path, {"model": torch.nn.Linear(5, 3).state_dict()})
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]
    (tmp_path / ".metadata").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")
    load_weights(torch.nn.Linear(5, 3), tmp_path)


def test_a_checkpoint_of_the_default_format_is_refused_with_the_writer_to_use(tmp_path: Path) -> None:
    dcp.save({"model": torch.nn.Linear(5, 3).state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(UserError, match="HuggingFaceStorageWriter"):
        load_weights(torch.nn.Linear(5, 3), tmp_path)


def test_frozen_weights_are_not_saved_but_known_by_their_hash(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3))
    assert frozen_weights_sha256(model) == ""
    model[0].requires_grad_(False)
    known = frozen_weights_sha256(model)
    load = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3))
    load[0].requires_grad_(False)
    assert frozen_weights_sha256(load) != known
    save(tmp_path, {"model": {name: value for name, value in model.state_dict().items() if name.startswith("1.")}})
    load_weights(load, tmp_path)
    assert torch.equal(load[1].weight, model[1].weight)
    load.load_state_dict(model.state_dict())
    assert frozen_weights_sha256(load) == known


def test_frozen_weights_are_compared_with_the_hash_of_an_earlier_version_as_it_made_it() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)).requires_grad_(False)
    earlier = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        earlier.update(name.encode() + b"\0" + weight.numpy().tobytes())
    known = earlier.hexdigest()
    assert frozen_weights_sha256(model, like=known) == known
    assert frozen_weights_sha256(model) == frozen_weights_sha256(model, like=frozen_weights_sha256(model)) != known


@pytest.mark.parametrize("like", ["", "0" * 64])
def test_the_hash_of_frozen_weights_is_of_fp32_and_of_every_part(monkeypatch: pytest.MonkeyPatch, like: str) -> None:
    model = torch.nn.Linear(50, 40, dtype=torch.bfloat16).requires_grad_(False)
    whole = frozen_weights_sha256(model, like)
    monkeypatch.setattr(checkpoint_state, "_HASHED_AT_ONCE", 7)
    assert frozen_weights_sha256(model, like) == frozen_weights_sha256(model.float(), like) == whole
    model.weight[-1, -1] += 1
    assert frozen_weights_sha256(model, like) != whole


def test_a_copy_is_of_the_moment_it_was_taken() -> None:
    weight = torch.zeros(3)
    copy = StateCopy({"model": {"weight": weight}})
    taken = copy.take()
    weight.add_(1)
    assert taken["model"]["weight"].tolist() == [0, 0, 0]
    assert copy.take()["model"]["weight"].tolist() == [1, 1, 1]


SHARDED = """
import sys, torch, torch.distributed as dist
from pathlib import Path
from torch.distributed.fsdp import fully_shard
from gpu_pipelines.tasks.checkpoint_state import StateCopy, load_state, save_state, training_state
dist.init_process_group("gloo")
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))
fully_shard(model[0])
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
if sys.argv[2] == "save":
    model(torch.ones(4, 7)).sum().backward()
    optimizer.step()
state = training_state(model, optimizer)
if sys.argv[2] == "save":
    copy = StateCopy(state).take()
    save_state(copy, Path(sys.argv[1]), dist.new_group(backend="gloo"))
else:
    load_state(state, Path(sys.argv[1]))
total = sum(p.full_tensor().double().sum().item() for p in model.parameters())
moments = sum(s["exp_avg"].full_tensor().double().sum().item() for s in optimizer.state.values())
if dist.get_rank() == 0:
    print(repr((total, moments)))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_what_two_processes_wrote_three_can_read(tmp_path: Path) -> None:
    def run(processes: int, what: str) -> str:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        script = tmp_path / "sharded.py"
        script.write_text(SHARDED)
        (tmp_path / "step").mkdir(exist_ok=True)
        done = subprocess.run(
            [*torchrun, str(script), str(tmp_path / "step"), what], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run(2, "save") == run(3, "load") != ""
