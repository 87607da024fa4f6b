"""karpathy's small language models."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scripts import data
from benchmarks.scripts.case import Case, Work

SMALL = (
    "--n_layer=2 --n_head=2 --n_embd=64 --block_size=64 --batch_size=8 --dtype=float32 --device=cpu "
    "--log_interval=1 --eval_interval=10 --eval_iters=5 --warmup_iters=5"
)


def _tokens(start: Path) -> None:
    data.characters(start / "data" / "shakespeare_char", number=50_000, vocabulary=65)


def _names(start: Path) -> None:
    data.names(start / "names.txt", number=2_000)


CASES = (
    Case(
        name="nanoGPT",
        repository="karpathy/nanoGPT",
        folder=".",
        script="train.py",
        arguments=f"config/train_shakespeare_char.py --compile=False --max_iters=100 {SMALL}",
        data=_tokens,
        work=Work(steps=101, validation=110),
        results=r"loss ([\d.]+)",
        note="no loader: batches from a memory-mapped file",
    ),
    Case(
        name="nanoGPT-accumulated",
        repository="karpathy/nanoGPT",
        folder=".",
        script="train.py",
        arguments=(
            "config/train_shakespeare_char.py --compile=False --max_iters=30 "
            f"--gradient_accumulation_steps=4 {SMALL}"
        ),
        data=_tokens,
        work=Work(steps=124, validation=40),
        results=r"loss ([\d.]+)",
        note="four batches to an update",
    ),
    Case(
        name="nanoGPT-compiled",
        repository="karpathy/nanoGPT",
        folder=".",
        script="train.py",
        arguments=f"config/train_shakespeare_char.py --compile=True --max_iters=60 {SMALL}",
        data=_tokens,
        work=Work(steps=61, validation=70),
        results=r"loss ([\d.]+)",
        note="`torch.compile`",
    ),
    Case(
        name="minGPT-adder",
        repository="karpathy/minGPT",
        folder=".",
        script="projects/adder/adder.py",
        arguments="--trainer.max_iters=60 --trainer.num_workers=1 --data.ndigit=3",
        work=Work(steps=60, validation=10),
        results=r"train loss ([\d.]+)|score: (.*)",
        import_from=".",
        note="the first step ends with an evaluation of ten batches, four calls of the network in each",
    ),
    Case(
        name="makemore",
        repository="karpathy/makemore",
        folder=".",
        script="makemore.py",
        arguments="--max-steps 301 --num-workers 1",
        data=_names,
        work=Work(steps=301, validation=None),
        results=r"loss ([\d.]+)",
        note="an endless loader with a worker; samples after step 200, in training mode",
    ),
)
