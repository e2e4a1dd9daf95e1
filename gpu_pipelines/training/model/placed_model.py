"""The model of a training on its processes: placed, measured, compiled; its loss with and without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from gpu_pipelines.accelerators.workload import NOT_SHARDED
from gpu_pipelines.errors import UnfitParametersError
from gpu_pipelines.tasks.recipe import Batch, Recipe
from gpu_pipelines.training.model.compiling import can_compile, compile_layers, compiles
from gpu_pipelines.training.model.compute import ModelCost, count_parameters, measure_cost
from gpu_pipelines.training.model.fp8 import multiply_in_fp8
from gpu_pipelines.training.model.frozen_weights import state_bytes
from gpu_pipelines.training.model.gradients import Gradients
from gpu_pipelines.training.model.parallelism import choose_parallelism, least_memory, mesh_of, nodes_of_training, place
from gpu_pipelines.training.model.precision import computing_in
from gpu_pipelines.training.model.recomputing import recompute_activations
from gpu_pipelines.training.model.weight_average import WeightAverage
from gpu_pipelines.training.settings import TrainingSettings


class PlacedModel:
    """A recipe's model on the device of each process, whole (DDP) or in shards (FSDP2).

    Args:
        model: from `built_once`, in the types of weights that it trains with.
        recipe: knows its loss and its layers.
        settings: hyperparameters.
        device: this process's.
        precision: bf16, fp16 or fp32.

    Attributes:
        module: the model itself, as the recipe built it.
        mesh: over which it is sharded; None where every process holds the whole.
        parallelism: ddp, hsdp or fsdp.
        average: of its weights, where one is kept.
        gradients: of its trained weights.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, settings: TrainingSettings, device: torch.device, precision: str
    ) -> None:
        self.module = model
        self._recipe, self._settings, self._device, self._precision = recipe, settings, device, precision
        nodes, per_node = nodes_of_training()
        self.parallelism = choose_parallelism(
            settings.parallelism, state_bytes(model), least_memory(device), nodes, per_node
        )
        if self.parallelism != "ddp" and settings.optimizer in NOT_SHARDED:
            raise UnfitParametersError(
                f"The model does not fit one device whole, and {settings.optimizer} cannot be sharded.",
                "Give adamw_8bit or muon, or an accelerator with more memory (gpu-pipelines accelerators advise).",
            )
        self.mesh = mesh_of(self.parallelism, device.type, nodes, per_node)
        self._announce()
        self._layers = self._prepared_layers()
        self.gradients = Gradients(model, place(model, self._layers, self.mesh, precision, device))
        self.average = WeightAverage(model, settings.ema_decay) if settings.ema_decay else None
        self._stance: Callable[[], AbstractContextManager[object]] = nullcontext

    def _announce(self) -> None:
        if dist.get_rank() == 0:
            trained, frozen = count_parameters(self.module)
            counted = f"{trained / 1e6:,.1f} M parameters to train"
            counted += f" ({frozen / 1e6:,.1f} M frozen)" if frozen else ""
            print(f"{counted}, {self.parallelism}, {self._precision}", flush=True)

    def _prepared_layers(self) -> list[nn.Module]:
        """The repeated layers, as they will compute: in fp8, or with activations that are recomputed."""
        settings, layers = self._settings, self._recipe.blocks(self.module)
        if settings.fp8:
            multiply_in_fp8(layers, self._device.type)
        if not settings.activation_checkpointing:
            return layers
        if not layers and dist.get_rank() == 0:
            kind = type(self.module).__name__
            print(f"warning: activation_checkpointing saves nothing, as {kind} has no repeated layers", flush=True)
        return recompute_activations(self.module, layers, selective=settings.recompute == "selective")

    @property
    def parallel(self) -> nn.Module:
        """What a forward pass with gradients is called on."""
        return self.gradients.parallel

    @property
    def unwrapped(self) -> nn.Module:
        """What a forward pass without gradients is called on."""
        return self.module if self.parallelism == "ddp" else self.parallel

    def loss(self, batch: Batch) -> torch.Tensor:
        """The recipe's loss of a batch, of which gradients are taken."""
        with computing_in(self._precision, self._device.type):
            return self._recipe.loss(self.parallel, batch)

    def loss_without_gradients(self, batch: Batch) -> torch.Tensor:
        """The recipe's loss of a batch, to look at."""
        with computing_in(self._precision, self._device.type):
            return self._recipe.loss(self.unwrapped, batch)

    def sums(self, batches: Iterable[tuple[Batch, int]]) -> torch.Tensor:
        """The recipe's sums over the batches of all processes; those without rows of their own do not count."""
        total: torch.Tensor | None = None
        with torch.no_grad():
            for batch, loss_tokens in batches:
                with computing_in(self._precision, self._device.type):
                    found = self._recipe.sums(self.unwrapped, batch) * bool(loss_tokens)
                total = found if total is None else total + found
        assert total is not None
        dist.all_reduce(total)
        return total

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The context of a validation: no gradients, and the running statistics that a checkpoint gets."""
        self.parallel.eval()
        self.take_statistics_of_rank_0()
        with torch.no_grad(), self._stance():
            yield
        self.parallel.train()

    def take_statistics_of_rank_0(self) -> None:
        """Makes running statistics, as of BatchNorm, the same everywhere: those that are saved, and evaluated."""
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)
        if self.average is not None:
            self.average.take_statistics_of_rank_0()

    def measure(self, batch: Batch) -> ModelCost:
        """What the model costs, the same on all processes; before `compile`, as compiled code hides its operations.

        Args:
            batch: of this process; rows of others may hold documents of other lengths.
        """
        sharded = self.mesh is not None
        with computing_in(self._precision, self._device.type):
            cost = measure_cost(
                self._recipe,
                self.parallel if sharded else self.module,
                batch,
                self._recipe.rows_of(batch),
                sharded=sharded,
            )
        told = [cost]
        dist.broadcast_object_list(told, src=0)
        return told[0]

    def compile(self, operations: float, peak: float | None) -> None:
        """Compiles the layers, if that is asked for or worth it.

        Args:
            operations: floating-point operations of the whole training.
            peak: of all devices together, operations per second; None if it is not known.
        """
        settings = self._settings
        processes = dist.get_world_size()
        in_equal_parts = settings.global_batch_size // processes % settings.rows_at_once(processes) == 0
        has_one_shape = self._recipe.has_one_shape and in_equal_parts
        must = settings.compile_model == "on"
        if not compiles(settings.compile_model, self._layers, has_one_shape, operations, peak):
            return
        if not can_compile(self._device, must):
            return
        compile_layers(self._layers or [self.module], has_one_shape, must)
        # Compiled, a validation would be of other shapes, and take places of the few that PyTorch keeps.
        if settings.attention != "flex":  # which has a kernel only where it is compiled
            self._stance = partial(torch.compiler.set_stance, "force_eager")
