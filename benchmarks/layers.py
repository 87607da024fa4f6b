"""Networks measured layer by layer on a GPU, and their predictions beside it.

    python -m benchmarks.layers measure OUT.jsonl --minutes 4      on the GPU (torchvision, transformers)
    python -m benchmarks.layers trace IN.jsonl OUT.jsonl.gz        their workloads, kept beside the times
    python -m benchmarks.layers                                    the errors of what is kept

None of these steps was fitted to, but by eye the host's constants to their tiny batches.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from laptime.estimate.predict import predict
from laptime.hardware import device
from laptime.model import Workload
from laptime.model.prediction import Prediction

# name -> (batch sizes of which the first is measured layer by layer, sample). A tiny batch shows the host.
IMAGES = {
    "alexnet": (128, 16),
    "vgg11": (64,),
    "resnet18": (128,),
    "resnet50": (128, 32),
    "resnet50-last": (128,),  # with channels side by side
    "mobilenet_v2-last": (128,),
    "squeezenet1_1": (64,),
    "mobilenet_v3_large": (64,),
    "densenet121": (64,),
    "googlenet": (128,),
    "efficientnet_b0": (64, 128),
    "convnext_tiny": (64,),
    "vit_b_16": (64,),
    "swin_t": (64,),
    "regnet_y_1_6gf": (128,),
    "shufflenet_v2_x1_0": (256,),
    "resnext50_32x4d": (64,),
    "mnasnet1_0": (128,),
    "inception_v3": (64,),
}
WORDS = {"bert_base": (64,), "gpt2": (8,), "distilbert": (32,), "lstm_2x512": (128, 32), "gru_3x1024": (64,)}
OTHERS = {"unet": (16,), "fcn_5x2048": (1024, 64)}
LENGTHS = {"bert_base": 128, "gpt2": 512, "distilbert": 128, "lstm_2x512": 64, "gru_3x1024": 100}
TINY = 2
KEPT = Path(__file__).parent / "measured" / "h200_networks.jsonl.gz"
GPU_BOUND = 0.9  # of the step the device is busy
HOST_IDLE = 0.6  # of the step, at most, the host takes: the lent machines' differ by a third


def network(name: str) -> Any:
    """A network by name."""
    import torch
    from torch import nn

    class Words(nn.Module):
        def __init__(self, make: Any, width: int, layers: int) -> None:
            super().__init__()
            self.embed = nn.Embedding(10_000, width)
            self.recurrent = make(width, width, layers, batch_first=True)
            self.out = nn.Linear(width, 10_000)

        def forward(self, ids: Any) -> Any:
            return self.out(self.recurrent(self.embed(ids))[0])

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (3, 64, 128, 256, 512)
            self.down = nn.ModuleList(_two(a, b) for a, b in itertools.pairwise(widths))
            self.up = nn.ModuleList(
                nn.ConvTranspose2d(b, a, 2, 2) for a, b in ((256, 512), (128, 256), (64, 128))
            )
            self.after = nn.ModuleList(_two(2 * a, a) for a in (256, 128, 64))
            self.head = nn.Conv2d(64, 21, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for index, block in enumerate(self.down):
                x = block(x)
                if index < 3:
                    kept.append(x)
                    x = nn.functional.max_pool2d(x, 2)
            for up, after in zip(self.up, self.after, strict=True):
                x = after(torch.cat([up(x), kept.pop()], 1))
            return self.head(x).flatten(2).transpose(1, 2)

    def _two(a: int, b: int) -> Any:
        convolution = nn.Conv2d(a, b, 3, padding=1, bias=False)
        again = nn.Conv2d(b, b, 3, padding=1, bias=False)
        return nn.Sequential(
            convolution, nn.BatchNorm2d(b), nn.ReLU(True), again, nn.BatchNorm2d(b), nn.ReLU(True)
        )

    if name in IMAGES:
        more = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
        plain = name.removesuffix("-last")
        made = getattr(torchvision().models, plain)(**more)
        return made if plain == name else made.to(memory_format=torch.channels_last)
    match name:
        case "lstm_2x512":
            return Words(nn.LSTM, 512, 2)
        case "gru_3x1024":
            return Words(nn.GRU, 1024, 3)
        case "unet":
            return Unet()
        case "fcn_5x2048":
            widths = [512, 2048, 2048, 2048, 2048, 2048]
            pairs = itertools.pairwise(widths)
            hidden = [part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())]
            return nn.Sequential(*hidden, nn.Linear(2048, 1000))
    import transformers

    given: Any = transformers
    return {
        "bert_base": lambda: given.BertForMaskedLM(given.BertConfig()),
        "gpt2": lambda: given.GPT2LMHeadModel(given.GPT2Config()),
        "distilbert": lambda: given.DistilBertForMaskedLM(given.DistilBertConfig()),
    }[name]()


def torchvision() -> Any:
    """Its CUDA build imports beside a CPU build of torch once the operators that it misses have a name."""
    import torch

    if not torch.cuda.is_available() and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        _KEPT.append(library)
    return import_module("torchvision")


_KEPT: list[Any] = []  # a library's definitions last as long as it does


def batch_of(name: str, size: int, place: Any) -> Any:
    """A batch for it, with labels where transformers computes the loss.

    Of random values: a batch norm of zeros takes a quarter longer (its divisions take their slow path).
    """
    import torch

    if name in LENGTHS:
        ids = torch.randint(1000, (size, LENGTHS[name]), device=place)
        return (ids,) if name in ("lstm_2x512", "gru_3x1024") else {"input_ids": ids, "labels": ids}
    if name == "fcn_5x2048":
        return (torch.randn(size, 512, device=place),)
    side = 299 if name == "inception_v3" else 128 if name == "unet" else 224
    images = torch.randn(size, 3, side, side, device=place)
    return (images.to(memory_format=torch.channels_last) if name.endswith("-last") else images,)


def measure(
    name: str, size: int, precision: str, *, layers: bool, kernels: bool = False, enough_s: float = 1.0
) -> dict[str, Any]:
    """Step time, peak memory and, if asked, layers and kernels: training with SGD and momentum on CUDA."""
    import torch

    import laptime
    from laptime.capture.fake_step import cross_entropy

    gc.collect()  # a recorder and its network hold each other
    torch.cuda.empty_cache()
    cuda = torch.device("cuda")
    subject = network(name).to(cuda).train()
    optimizer = torch.optim.SGD(subject.parameters(), lr=1e-6, momentum=0.9)
    batch = batch_of(name, size, cuda)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = subject(**batch).loss if isinstance(batch, dict) else cross_entropy(subject, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = list(_times(step, enough_s))
    found: dict[str, Any] = {
        "network": name,
        "batch": size,
        "precision": precision,
        "step_ms": median(times),
        "steps": len(times),
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20,
        "reserved_mib": torch.cuda.max_memory_reserved() / 2**20,
    }
    if kernels:
        found["kernels"] = _kernels(step)
    if layers:
        with tempfile.TemporaryDirectory() as folder:
            with laptime.record(subject, optimizer, out=Path(folder) / "run", every_step=True) as recording:
                for _ in range(14):
                    with recording.step():
                        step()
            found["layers"] = [
                [
                    one.layer,
                    *(part.median if part else 0.0 for part in (one.forward, one.backward, one.update)),
                ]
                for one in recording.run.layers(skip=4)
            ]
            read = Path(folder) / "run" / "workload.json"
            found["read_gflops"] = Workload.load(read).flops / 1e9 if read.exists() else None
    return found


def _kernels(step: Callable[[], None]) -> list[list[Any]]:
    """Operation, shapes, calls in a step, and the microseconds of a call's own kernels."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as found:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    return [
        [one.key, one.input_shapes, one.count / 2, one.self_device_time_total / one.count]
        for one in found.key_averages(group_by_input_shape=True)
        if one.self_device_time_total > 0 and one.key.startswith("aten::")
    ]


def _times(step: Callable[[], None], enough_s: float) -> Iterator[float]:
    import torch

    end = time.perf_counter() + enough_s
    events = []
    count = 0
    while count < 8 or (time.perf_counter() < end and count < 60):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append(event)
        step()
        count += 1
    torch.cuda.synchronize()
    for first, second in itertools.pairwise(events):
        yield first.elapsed_time(second)


def measure_all(out: Path, minutes: float, turns: Sequence[int], *, kernels: bool) -> None:
    """All of them while the time lasts; what fails is said and left out.

    Turns: 1 is the first size with its layers, 2 the other sizes, 0 a tiny batch, to see the host.
    """
    import torch

    end = time.monotonic() + 60 * minutes
    with out.open("w", encoding="utf-8") as file:
        for turn in turns:
            for name, sizes in (IMAGES | WORDS | OTHERS).items():
                chosen = ((TINY,), sizes[:1], sizes[1:])[turn]
                for size in chosen:
                    for precision in ("fp32", "bf16"):
                        if time.monotonic() > end:
                            print("out of time at", name, size, precision)
                            return
                        try:
                            row = measure(
                                name, size, precision, layers=turn > 0, kernels=kernels, enough_s=0.4
                            )
                        except Exception as error:
                            print(name, size, precision, type(error).__name__, str(error)[:200])
                            continue
                        row |= {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
                        file.write(json.dumps(row) + "\n")
                        file.flush()
                        print(name, size, precision, f"{row['step_ms']:.2f} ms", flush=True)


def trace_all(rows: Path, out: Path) -> None:
    """Read every network that was measured, and keep both."""
    import torch

    from laptime.api import workload

    with rows.open(encoding="utf-8") as file, gzip.open(out, "wt", encoding="utf-8") as kept:
        for row in map(json.loads, file):
            try:
                with torch.device("meta"):
                    subject = network(row["network"])
            except NotImplementedError:  # its initialisation looks at values
                subject = network(row["network"])
            batch = batch_of(row["network"], row["batch"], "meta")
            read = workload(subject, example=batch, precision=row["precision"], name=row["network"])
            kept.write(json.dumps(row | {"workload": read.document()}) + "\n")
            print(row["network"], row["batch"], row["precision"], flush=True)


def layer_error(row: dict[str, Any], made: Prediction) -> float:
    """How far forward and backward of its layers are off, over what they take."""
    measured = {name: times for name, *times in row["layers"]}
    off = whole = 0.0
    for one in made.layers():
        times = measured.pop(one.layer or "(loss)", (0.0, 0.0, 0.0))
        for mine, real in zip((one.forward_s, one.backward_s, one.update_s), times, strict=True):
            off, whole = off + abs(mine - real), whole + real
    rest = sum(sum(times) for times in measured.values())
    return (off + rest) / (whole + rest)


def compared() -> list[str]:
    """The error of steps, of layers and of memory, by network; then over those that the device bounds."""
    made = ["| network | batch | | step ms | predicted | error % | layers % | memory % |"]
    made.append("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    found: dict[str, list[tuple[float, float, float]]] = {}
    with gzip.open(KEPT, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            mine = predict(Workload.of(row["workload"]), device("h200"))
            error = mine.step_s * 1e3 / row["step_ms"] - 1
            memory = mine.peak_memory_bytes / 2**20 / row["peak_mib"] - 1
            layers = layer_error(row, mine)
            bound = mine.busy_s > GPU_BOUND * mine.step_s and mine.host_s < HOST_IDLE * mine.step_s
            for key in ("all", f"device-bound, {row['precision']}") if bound else ("all",):
                found.setdefault(key, []).append((error, layers, memory))
            figures = f"{row['step_ms']:.2f} | {mine.step_s * 1e3:.2f} | {error * 100:+.1f}"
            name = f"{row['network']} | {row['batch']} | {row['precision']}"
            made.append(f"| {name} | {figures} | {layers * 100:.1f} | {memory * 100:+.1f} |")
    made += [
        "",
        "| | rows | step: mean % | p90 | layers, time-weighted: mean % | p90 | memory: mean % | lowest |",
    ]
    made.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for key, rows in found.items():
        steps, parts, peaks = (np.array(one) * 100 for one in zip(*rows, strict=True))
        off = np.abs(steps)
        averages = [off.mean(), np.quantile(off, 0.9), parts.mean(), np.quantile(parts, 0.9)]
        averages += [np.abs(peaks).mean(), peaks.min()]
        made.append(f"| {key} | {len(rows)} | " + " | ".join(f"{one:.1f}" for one in averages) + " |")
    return made


def main() -> None:
    """Measure, trace or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb")
    measuring = verbs.add_parser("measure")
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--minutes", type=float, default=4.0)
    tracing = verbs.add_parser("trace")
    tracing.add_argument("rows", type=Path)
    tracing.add_argument("out", type=Path)
    measuring.add_argument("--turns", type=int, nargs="+", choices=(0, 1, 2), default=(1, 2, 0))
    measuring.add_argument("--kernels", action="store_true", help="also of each operation, by torch.profiler")
    options = parser.parse_args()
    if options.verb == "trace":
        trace_all(options.rows, options.out)
    if options.verb == "measure":
        measure_all(options.out, options.minutes, options.turns, kernels=options.kernels)
    if options.verb is None:
        print("\n".join(compared()))


if __name__ == "__main__":
    main()
