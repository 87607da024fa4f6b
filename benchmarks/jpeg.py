"""`python -m benchmarks.jpeg`: images per second and core, laptime's JPEG folder against a Pillow loader.

Both read the same files, take a random part (8 to 100 % of the area, 3:4 to 4:3) to 224 pixels, mirror half
of them, and give a normalised float32 batch. They take turns in one process, batch by batch, and are timed in
seconds of CPU, which is what "per core" means and what another process on the machine disturbs least. Files
are in the page cache: this measures decoding, not the disk.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from laptime.model import ratio_interval
from laptime.training.data import NetworkInput, open_data, zener
from laptime.training.data.generate import write_image_folder
from laptime.training.data.kinds import FolderData

TARGET = 2.0
CARDS = 2000
SIZE = 224
_MEAN, _DEVIATION = (torch.tensor(v).view(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


class PillowFolder:
    """What `ImageFolder` with the usual transforms does for each image, without torchvision."""

    def __init__(self, path: Path) -> None:
        self.files = sorted(path.glob("*/*.jpg"))
        self._chance = random.Random(0)

    def batch(self, picks: Sequence[int]) -> Tensor:
        """Samples one by one, then put together, as the default `collate` does."""
        return torch.stack([self._sample(self.files[pick]) for pick in picks])

    def _sample(self, path: Path) -> Tensor:
        with open(path, "rb") as file:
            image: Image.Image = Image.open(file).convert("RGB")
        left, top, width, height = self._part(*image.size)
        image = image.crop((left, top, left + width, top + height))
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if self._chance.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image, np.uint8, copy=True)).permute(2, 0, 1).contiguous()
        return pixels.to(torch.float32).div(255).sub_(_MEAN).div_(_DEVIATION)

    def _part(self, width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = width * height * self._chance.uniform(0.08, 1.0)
            ratio = (3 / 4) * (16 / 9) ** self._chance.random()
            across, down = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < across <= width and 0 < down <= height:
                left, top = self._chance.randint(0, width - across), self._chance.randint(0, height - down)
                return left, top, across, down
        return 0, 0, width, height


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Images per CPU second of both loaders, and how many times faster ours is, with its 95 % interval."""

    size: tuple[int, int]
    kilobytes: float
    ours: float
    pillow: float
    ratio: float
    low: float
    high: float

    def text(self) -> str:
        """A line of the table."""
        height, width = self.size
        verdict = "ok" if self.ratio >= TARGET else "MISS"
        return (
            f"{width}x{height}  {self.kilobytes:5.0f} KB  {self.ours:6.0f}  {self.pillow:6.0f}  "
            f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})  {verdict}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jpeg", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="batches of each loader and size; 20")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch; 64")
    parser.add_argument("--per-class", type=int, default=20, help="images of each of ten classes; 20")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("image       file        laptime  Pillow  ratio (images per CPU second)")
    rows: list[Row] = []
    for size in ((375, 500), (768, 1024)):
        rows.append(compare(size, rounds=options.rounds, batch=options.batch, per_class=options.per_class))
        print(rows[-1].text(), flush=True)
    print(f"Zener cards of 32x32: {cards_per_second():.0f} per CPU second")
    return 0 if all(row.ratio >= TARGET for row in rows) else 1


def compare(size: tuple[int, int], *, rounds: int, batch: int, per_class: int) -> Row:
    """Both loaders on a folder of images of (height, width), in turns."""
    with tempfile.TemporaryDirectory(prefix="laptime-jpeg-") as folder:
        path = Path(folder)
        write_image_folder(path, per_class=per_class, size=size)
        data: Any = open_data(
            FolderData(path=path, validation_share=0.0), NetworkInput(input=(3, SIZE, SIZE))
        )
        peer = PillowFolder(path)
        loaders = (data.train.__getitems__, peer.batch)
        seconds = _in_turns(loaders, len(peer.files), rounds=rounds, batch=batch)
        kilobytes = sum(file.stat().st_size for file in peer.files) / len(peer.files) / 1e3
    ours, pillow = seconds
    median = [float(np.median(one)) for one in seconds]
    ratio, low, high = ratio_interval(pillow, ours)
    return Row(
        size=size,
        kilobytes=kilobytes,
        ours=batch / median[0],
        pillow=batch / median[1],
        ratio=ratio,
        low=low,
        high=high,
    )


def _in_turns(
    loaders: Sequence[Callable[[list[int]], Any]], samples: int, *, rounds: int, batch: int
) -> list[list[float]]:
    order = random.Random(1)
    seconds: list[list[float]] = [[] for _ in loaders]
    for turn in range(-2, rounds):  # two rounds to warm up
        picks = [order.randrange(samples) for _ in range(batch)]
        for index in range(len(loaders))[:: 1 if turn % 2 else -1]:
            began = time.process_time()
            loaders[index](picks)
            if turn >= 0:
                seconds[index].append(time.process_time() - began)
    return seconds


def cards_per_second(rounds: int = 5) -> float:
    """Zener cards drawn, the median of a few deals."""
    rates: list[float] = []
    for turn in range(rounds):
        began = time.process_time()
        zener.cards(CARDS, seed=turn)
        rates.append(CARDS / (time.process_time() - began))
    return float(np.median(rates))


if __name__ == "__main__":
    sys.exit(main())
