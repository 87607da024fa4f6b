"""Random numbers in the shape of data: for timing, not for learning."""

from __future__ import annotations

import torch

from laptime.errors import DataError
from laptime.training.data import Data, NetworkInput
from laptime.training.data.datasets import Tensors, enough_memory, whole_seed
from laptime.training.data.kinds import SyntheticData


def open_data(config: SyntheticData, wanted: NetworkInput) -> Data:
    """Samples of the shape asked for, or that the network takes, with labels below the number of classes.

    Real numbers lie in [0, 1), where every loss takes them. Where the number of classes is not known all
    labels are 0, which every classifier has. Where the classes are the whole numbers themselves, each number
    has one as its target, as in a text.
    """
    shape = config.shape or wanted.input
    if shape is None:
        raise DataError("the network does not tell what it takes; set data.shape, such as [3, 224, 224]")
    classes, ids = config.classes or wanted.classes, config.ids or wanted.ids

    def make(samples: int, *, stream: int) -> Tensors:
        random = torch.Generator().manual_seed(whole_seed(config.seed, stream))
        whole = (samples, *shape)
        with enough_memory("data.samples or data.shape"):
            if not ids:
                inputs = torch.rand(whole, generator=random)
            else:
                inputs = torch.randint(ids, whole, generator=random)
                if classes in (0, ids):
                    return Tensors(inputs, torch.randint(ids, whole, generator=random))
            return Tensors(inputs, torch.randint(max(1, classes), whole[:1], generator=random))

    return Data(
        train=make(config.samples, stream=0),
        validation=make(config.validation_samples, stream=1) if config.validation_samples else None,
        # Names would only repeat the numbers; a network is built for as many as it was asked for.
        classes=tuple(map(str, range(config.classes or 0))),
        facts={"shape": list(shape), "ids": ids},
    )
