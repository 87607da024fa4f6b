"""One network by itself: a batch of its own data or of made-up data, and one step of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laptime.errors import BadTarget, LaptimeError
from laptime.training import target
from laptime.training.data import NetworkInput, open_data
from laptime.training.data.kinds import KINDS
from laptime.training.loader import moved
from laptime.training.networks.registry import entry
from laptime.training.objectives import Batch, Moment, Objective, StepLoss
from laptime.training.target import Sample

WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledNetwork:
    """A network, the batch it gets, and one step of it."""

    network: nn.Module
    batch: tuple[Any, ...]
    objective: Objective
    optimizers: dict[str, torch.optim.Optimizer]  # none: forward passes only
    shapes: str

    def step(self) -> Tensor | None:
        """One training step, or one forward pass where there is no optimizer."""
        if not self.optimizers:
            with torch.no_grad():
                self.objective.judge(self.network, self.batch)
            return None
        loss = None
        for part in self.objective.parts(self.network, self.batch, Moment(epoch=0, epochs=1)):
            part.loss.backward()
            self.optimizers[part.group].step()
            self.optimizers[part.group].zero_grad()
            loss = part.loss.detach() if loss is None else loss
        return loss


def warmed_up(
    name: str, network: nn.Module, samples: Sequence[Sample], size: int, device: torch.device, inference: bool
) -> ProfiledNetwork:
    """A network after its warm-up steps. One that cannot be run is refused here, in one line."""
    torch.manual_seed(0)
    network.train(not inference)
    shapes = " and ".join(map(str, samples)) or "its own data"
    try:
        objective: Objective
        if samples:
            batch: Batch = tuple(made_up_batch(sample, size, network, device) for sample in samples)
            objective = MadeUp()
        else:
            batch, objective, shapes = _own_data(name, size, device)
        with torch.no_grad():
            objective.judge(network, batch)  # gives lazy layers their parameters
        groups = {} if inference else objective.groups(network)
        if not inference and not all(groups.values()):
            raise BadTarget(f"{name} has no parameter to train; --inference times its forward passes")
        subject = ProfiledNetwork(
            network=network,
            batch=batch,
            objective=objective,
            optimizers={
                group: torch.optim.SGD(trained, lr=1e-3, momentum=0.9) for group, trained in groups.items()
            },
            shapes=shapes,
        )
        for _ in range(WARM_UP):
            subject.step()
    except LaptimeError:
        raise
    except Exception as error:
        said = target.describe(error)
        reason = f"did not take {shapes} in batches of {size} ({said}); give another --input or --batch"
        if "out of memory" in str(error):
            reason = f"with batch {size} does not fit into the device's memory; give a smaller --batch"
        elif isinstance(error, IndexError):
            reason = f"did not take the ids of {shapes} ({said}); write --input int64:LENGTH@IDS"
        raise BadTarget(f"{name} {reason}") from error
    return subject


def _own_data(name: str, size: int, device: torch.device) -> tuple[tuple[Any, ...], Objective, str]:
    """A batch of what a network of the zoo is meant for, its objective, and words for the batch."""
    known = entry(name)
    section: Any = KINDS[known.data]
    config = section(samples=size) if "samples" in section.model_fields else section()
    data = open_data(config, NetworkInput(input=known.input, classes=known.classes, ids=known.ids))
    batch = moved(data.train.__getitems__(list(range(size))), device)  # type: ignore[attr-defined]
    shape = "x".join(map(str, batch[0].shape[1:]))
    return batch, known.goal(None), f"{shape} ({known.data})"


def made_up_batch(sample: Sample, size: int, network: nn.Module, device: torch.device) -> Tensor:
    """A batch of made-up samples on the device."""
    dtype: torch.dtype = getattr(torch, sample.dtype)
    shape = (size, *sample.shape)
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    # Token embeddings come first in every network we know; positions and token types after them.
    modules = network.modules()
    sizes = [module.num_embeddings for module in modules if isinstance(module, nn.Embedding)]
    below = 2 if dtype == torch.bool else sample.ids or (sizes[0] if sizes else 2)
    return torch.randint(below, shape, device=device).to(dtype)


def first_tensor(output: Any) -> Tensor | None:
    """The first floating-point tensor of an output: `logits` if it has that, else in order."""
    if output is None or isinstance(output, Tensor):
        return output if output is not None and output.is_floating_point() else None
    parts = output if isinstance(output, list | tuple) else getattr(output, "__dict__", {}).values()
    parts = output.values() if isinstance(output, Mapping) else parts
    tensors = map(first_tensor, (getattr(output, "logits", None), *parts))
    return next((tensor for tensor in tensors if tensor is not None), None)


def made_up_loss(output: Any) -> Tensor:
    """Cross-entropy of the output against class 0.

    Classes are the last dimension of (batch, classes) and (batch, positions, classes), the second of images.
    A single number is taken for a loss; one number per sample, for an error to be squared.
    """
    scores = first_tensor(output)
    if scores is None:
        kind = type(output).__name__
        raise BadTarget(f"the network's output, a {kind}, holds no tensor of floating-point numbers")
    if scores.dim() == 0:
        return scores
    if scores.dim() == 1:
        return scores.float().square().mean()
    if scores.dim() == 3:
        scores = scores.flatten(0, 1)
    target = scores.new_zeros((scores.shape[0], *scores.shape[2:])).long()
    return F.cross_entropy(scores.float(), target)


class MadeUp(Objective):
    """Any network, trained to put out class 0."""

    def judge(self, network: nn.Module, batch: Batch) -> StepLoss:
        """The loss of the first output."""
        return StepLoss(loss=made_up_loss(network(*batch)))
