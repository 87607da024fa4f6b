"""Feature parallel: every rank has a slice of the features of linear layers, by torch's tensor parallelism.

A layer split by columns gives each rank some of its outputs; one split by rows takes some of the inputs, and
the ranks add up their results. Where two linear layers follow each other with nothing but an activation
between them, the first is split by columns and the second by rows, and they exchange once. Any other is
split by columns and its outputs are gathered. All ranks read the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from laptime.errors import ConfigError
from laptime.training.objectives import Batch, Objective
from laptime.training.strategies import strategy
from laptime.training.strategies.contract import DataShare
from laptime.training.whole_tensors import SplitTensors

# Modules that treat every feature by itself and draw no random numbers.
ELEMENTWISE = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity)


@strategy("feature")
class FeatureParallel(SplitTensors):
    """Linear layers and embeddings are split over the ranks; every other layer is computed by all of them."""

    @property
    def share(self) -> DataShare:
        return DataShare(part=0, parts=1)

    @property
    def counts_samples(self) -> bool:
        return self.ranks.rank == 0

    def place(self, network: nn.Module, objective: Objective, sample: Callable[[], Batch]) -> nn.Module:
        mesh = init_device_mesh(self.device.type, (self.ranks.ranks,))
        styles = dict(split_layers(network, self.ranks.ranks))
        if not styles:
            raise ConfigError(
                f"parallel.strategy = 'feature' splits linear layers and embeddings, and {self.ranks.ranks} "
                "ranks divide none of them here; use 'data' or 'model'"
            )
        for module in network.modules():
            if getattr(module, "inplace", False):
                module.inplace = False  # type: ignore[assignment]  # autograd forbids it on what a split layer gives
        return parallelize_module(network, mesh, styles)


def split_layers(network: nn.Module, ranks: int) -> Iterator[tuple[str, ParallelStyle]]:
    """The layers that so many ranks can split, by name, and how each is split."""
    by_rows: dict[nn.Module, nn.Module] = {}  # by the layer before, which is split by columns
    for first, second in _neighbours(network):
        if first not in by_rows.values() and first.out_features % ranks == 0:
            by_rows[first] = second
    for name, module in network.named_modules():
        features = module.out_features if isinstance(module, nn.Linear) else 0
        features = module.embedding_dim if isinstance(module, nn.Embedding) else features
        if module in by_rows:
            yield name, ColwiseParallel()
        elif module in by_rows.values():
            yield name, RowwiseParallel()
        elif features and features % ranks == 0:
            yield name, ColwiseParallel(output_layouts=Replicate())


def _neighbours(network: nn.Module) -> Iterator[tuple[nn.Linear, nn.Linear]]:
    """Linear layers that follow each other in a Sequential with nothing but activations between them."""
    for module in network.modules():
        if isinstance(module, nn.Sequential):
            before: nn.Linear | None = None
            for child in module:
                if isinstance(child, nn.Linear):
                    if before is not None:
                        yield before, child
                    before = child
                elif not isinstance(child, ELEMENTWISE):
                    before = None
