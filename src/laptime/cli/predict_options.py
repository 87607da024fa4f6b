"""The options of `laptime predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A network of the zoo or a type of transformers (gpt2), module:callable, file.py:callable, a "
        "recorded run, or a saved workload (.json).",
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        help="A name of `laptime devices`, a file, or cpu; several: t4,h200, or 'all'. By default h200; for "
        "--within and --under all that have a price.",
        show_default=False,
    ),
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch",
        help="Samples in a step; several: 32,64,128. By default 32, or a run's.",
        show_default=False,
    ),
]
Gpus = Annotated[
    str, typer.Option("--gpus", help="Of one node, 16 at most, each with its own batch; several: 1,2,4,8.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="SHAPE", help="One sample: 3x224x224, or int64:128 for token ids."),
]
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="fp32 (the default), or autocast: bf16, fp16.", show_default=False),
]
Inference = Annotated[bool, typer.Option("--inference", help="Forward passes only.")]
Optimizer = Annotated[
    str | None,
    typer.Option("--optimizer", help="Of the training; by default momentum.", show_default=False),
]
Samples = Annotated[
    int | None, typer.Option("--samples", help="In an epoch; alone: its time.", show_default=False)
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", help="Of the training; with --samples.", show_default=False)
]
Price = Annotated[
    float | None,
    typer.Option(
        "--price", help="Dollars an hour of one GPU; by default the catalog's example.", show_default=False
    ),
]
Within = Annotated[
    float | None,
    typer.Option(
        "--within", metavar="HOURS", help="Choose the cheapest that trains within it.", show_default=False
    ),
]
Under = Annotated[
    float | None,
    typer.Option(
        "--under",
        metavar="DOLLARS",
        help="Choose the fastest that trains for it; with --within, the cheapest within both.",
        show_default=False,
    ),
]
LargestBatch = Annotated[
    bool, typer.Option("--largest-batch", help="Also the largest batch that fits each device.")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Every constant with its source, and where the time goes.")
]
Save = Annotated[
    Path | None, typer.Option("--save", help="Also save the workload as JSON.", show_default=False)
]

# Data flow: any of these asks for it.
SampleBytes = Annotated[
    float | None,
    typer.Option("--sample-bytes", help="Data flow: bytes of one stored sample.", show_default=False),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        help="Data flow: hdd, ssd, nvme …, or a RAID 0 such as 5xnvme; by default the host's memory.",
        show_default=False,
    ),
]
Remote = Annotated[
    str | None,
    typer.Option(
        "--remote",
        metavar="LINK",
        help="Data flow: what the data comes over, such as 10GbE; by default it is kept at the node.",
        show_default=False,
    ),
]
DecodeCores = Annotated[
    int | None,
    typer.Option("--decode-cores", min=1, help="Data flow: cores that decode.", show_default=False),
]
DecodeRate = Annotated[
    float | None,
    typer.Option(
        "--decode-rate",
        help="Data flow: samples a second of one core; by default Pillow's, JPEG with crop and resize.",
        show_default=False,
    ),
]
Link = Annotated[
    str | None,
    typer.Option(
        "--link",
        help="Data flow: from host to GPU, such as pcie4; by default the device's.",
        show_default=False,
    ),
]
GpusPerLink = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-link", min=1, help="Data flow: GPUs that one link serves in turn.", show_default=False
    ),
]
HostMemory = Annotated[
    str | None,
    typer.Option(
        "--host-memory", help="Data flow: pinned, shared (the default) or pageable.", show_default=False
    ),
]
NoPrefetch = Annotated[
    bool, typer.Option("--no-prefetch", help="Data flow: fetch a batch only when the last is done.")
]
SameSamples = Annotated[
    bool, typer.Option("--same-samples", help="Data flow: every GPU gets the same, as parts of a model do.")
]
Direct = Annotated[bool, typer.Option("--direct", help="Data flow: … and they hand it on from GPU to GPU.")]
