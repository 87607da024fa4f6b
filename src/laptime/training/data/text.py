"""A text as the numbers of its characters: each sample is a piece of it, its target the same moved by one."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from laptime.errors import DataError
from laptime.files.read import GIB, read_bytes
from laptime.files.text import first_line, one_line
from laptime.training.data import Data, NetworkInput
from laptime.training.data.kinds import TextData

_ASCII, _BYTES = 128, 256
_OVERLAP = 8  # pieces start every eighth of their length: short texts still make many samples


class Pieces(Dataset[Any]):
    """Pieces of `length` characters, one every `stride`; each epoch's start a little further on."""

    def __init__(self, text: Tensor, length: int, stride: int) -> None:
        self._text, self._length, self._stride = text, length, stride
        self._samples = 1 + (len(text) - length - 1) // stride

    def __len__(self) -> int:
        return self._samples

    @property
    def reach(self) -> int:
        """How many pieces before and after a piece share characters with it, in any epoch."""
        return -(-self._length // self._stride)

    def __getitems__(self, picks: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(picks)
        # 7 has no factor in common with the powers of two that strides usually are: all places are visited.
        later = chosen // len(self) * 7 % self._stride
        last = len(self._text) - self._length - 1
        starts = (chosen % len(self) * self._stride + later).clamp(max=last)
        pieces = self._text[starts[:, None] + torch.arange(self._length + 1)].long()
        return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def open_data(config: TextData, wanted: NetworkInput) -> Data:
    """The text in bytes of UTF-8, or in ASCII where the network knows no more; its end is held out."""
    ids = wanted.ids or _BYTES
    if ids < _ASCII:
        raise DataError(f"the network knows {ids} characters and a text needs {_ASCII}; choose another")
    raw, replaced = _read(config), 0
    if ids < _BYTES and not raw.isascii():
        characters = raw.decode()
        raw = characters.encode("ascii", errors="replace")
        replaced = sum(not character.isascii() for character in characters)
    text = torch.from_numpy(np.frombuffer(raw, np.uint8).copy())
    name = str(config.path or "the licence")
    fewest = config.length + 1
    held = max(fewest, round(len(text) * config.validation_share)) if config.validation_share else 0
    if len(text) - held < fewest:
        raise DataError(
            f"{name} has {len(text)} characters, too few for pieces of {config.length}; lower data.length, "
            "or set data.path to a longer text"
        )
    problem = f"{replaced} characters of {name} are not ASCII and were replaced by question marks"
    return Data(
        train=Pieces(text[: len(text) - held], config.length, max(1, config.length // _OVERLAP)),
        # Held-out pieces follow each other: nothing is judged twice.
        validation=Pieces(text[len(text) - held :], config.length, config.length) if held else None,
        facts={"path": name, "characters": len(text), "replaced": replaced},
        problems=lambda: (problem,) if replaced else (),
    )


def _read(config: TextData) -> bytes:
    if config.path is None:
        return resources.files("laptime.training.data").joinpath("licence.txt").read_bytes()
    shown = one_line(config.path)
    try:
        raw = read_bytes(config.path, most=GIB)
        raw.decode()
    except OSError as error:
        raise DataError(
            f"{shown} cannot be read ({first_line(error)}); set data.path to a text file"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{shown} is not UTF-8 at byte {error.start}; convert it, or set data.path to a text"
        ) from error
    return raw
