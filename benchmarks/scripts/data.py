"""Made-up data in the formats that the scripts read. Small, and the same each time."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 20261116


def mnist(folder: Path, *, training: int, test: int) -> None:
    """The four idx files that torchvision's MNIST reads, under MNIST/raw."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    for split, number in (("train", training), ("t10k", test)):
        labels = np.arange(number, dtype=np.uint8) % 10
        images = random.integers(0, 64, (number, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 2 : 2 * label + 6, 4:24] = 255  # a bar whose height tells the digit
        header = struct.pack(">IIII", 2051, number, 28, 28)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, number) + labels.tobytes())


def images(folder: Path, *, classes: Sequence[str], each: int, size: int) -> None:
    """JPEG files, one folder per class."""
    random = np.random.default_rng(SEED)
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        tint = random.integers(0, 128, 3)
        for number in range(each):
            pixels = (random.integers(0, 128, (size, size, 3)) + tint).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:04d}.jpg", quality=80)


def words(path: Path, *, number: int, vocabulary: int, line: int = 20) -> None:
    """Text: every word follows from the one before, nearly always."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    jumps = random.integers(0, vocabulary, number)
    stays = random.random(number) < 0.9
    word, text = 0, []
    for stay, jump in zip(stays, jumps, strict=True):
        word = (word * 7 + 3) % vocabulary if stay else int(jump)
        text.append(f"word{word}")
    lines = (" ".join(text[start : start + line]) for start in range(0, number, line))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def characters(folder: Path, *, number: int, vocabulary: int) -> None:
    """nanoGPT's token files: train.bin, val.bin, meta.pkl."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.random.default_rng(SEED).integers(0, vocabulary, number).astype(np.uint16)
    tokens[: number * 9 // 10].tofile(folder / "train.bin")
    tokens[number * 9 // 10 :].tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocabulary}))


def names(path: Path, *, number: int) -> None:
    """One made-up name a line."""
    random = np.random.default_rng(SEED)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    lines = ["".join(random.choice(letters, random.integers(3, 12))) for _ in range(number)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def sine_waves(path: Path, *, waves: int, points: int) -> None:
    """Shifted sine waves as a saved array, one a row."""
    import torch

    shifts = np.random.default_rng(SEED).integers(-80, 80, (waves, 1))
    with open(path, "wb") as file:
        torch.save(np.sin((np.arange(points) + shifts) / 20.0), file)
