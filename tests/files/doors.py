"""Every door through which a foreign file comes in: a good file, how it is spoilt, and who reads it."""

import gzip
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from laptime.estimate.calibration import Calibration, Forest
from laptime.estimate.choose_device import DeviceChoice
from laptime.estimate.dataflow import DataFlow, FlowTimes, Remedy
from laptime.estimate.explain import explain
from laptime.estimate.largest_batch import Largest
from laptime.estimate.run_correction import workload_of
from laptime.files.write import plain
from laptime.hardware import device
from laptime.microbench.row import read_rows
from laptime.model import Workload
from laptime.render import terminal
from laptime.render.html.prediction_page import prediction_page
from laptime.render.html.run_page import run_page
from laptime.render.terminal.prediction import prediction_lines
from laptime.render.terminal.run_text import run_lines
from laptime.runs import load
from laptime.runs.exchanges import read_exchanges
from laptime.runs.importers import collect
from laptime.training import checkpoint
from laptime.training.config.reading import read_config
from laptime.training.data.images import middle, read_into
from laptime.training.data.layout import read_labels
from laptime.views.comparison.sides import compare
from laptime.views.prediction import PredictionView, read_view
from laptime.views.run_document import document as run_document
from laptime.views.run_view import run_view
from tests.estimate.runs import H200, a_run, a_workload, predicted
from tests.files import mutations
from tests.views.samples import SUMMARY

Spoil = Callable[[random.Random], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A file of one kind. `read` has to end with a result or with a LaptimeError."""

    name: str
    path: Path
    spoil: Spoil
    read: Callable[[Path], object]
    weight: int = 1  # how many of the inputs are for it, in proportion


# -- readers ---------------------------------------------------------------------------------------


def _show(path: Path) -> None:
    """A run as the terminal shows it, and as JSON."""
    view = run_view(load(path))
    terminal.print_lines(run_lines(view, 80), terminal.console(io.StringIO()))
    run_document(view)


def _page(path: Path) -> None:
    run_page(load(path))


def _compare(path: Path) -> None:
    run = load(path)
    compare([run], [run])


def _workload(path: Path) -> None:
    predicted(Workload.load(path))


def _prediction(path: Path) -> None:
    view = read_view([path])
    terminal.print_lines(prediction_lines(view, 80), terminal.console(io.StringIO()))
    prediction_page(view)
    view.document()


def _collect(path: Path) -> None:
    out = path.parent / f"{path.name}-run"
    if out.exists():
        _remove(out)
    collect(path, out)


def _remove(out: Path) -> None:
    for file in sorted(out.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    out.rmdir()


def _image(path: Path) -> None:
    read_into(np.empty((3, 8, 8), np.uint8), bytes(path), middle)


# -- good files ------------------------------------------------------------------------------------

DEVICE = """name = "my-box"
kind = "gpu"
title = "My box"
aliases = ["box"]
memory_gib = 80
memory_bandwidth_gbs = 2000
fp32 = 60.5
bf16 = 900
year = 2024
note = "a note"
[sources]
fp32 = "data sheet"
"""
CONFIG = """[network]
name = "vgg11"
[data]
kind = "synthetic"
classes = 10
[train]
batch = 16
steps = 8
[optimizer]
name = "sgd"
lr = 0.1
"""
YAML = "network:\n  name: vgg11\ndata: {kind: synthetic, classes: 10}\ntrain:\n  batch: 16\n  steps: 8\n"
XML = """<?xml version="1.0"?>
<laptime><network name="vgg11"/><batch_size>16</batch_size><train><steps>8</steps></train></laptime>
"""
LOG = """2018-05-01 12:00:00.5: step 10, loss = 4.67 (512.0 examples/sec; 0.125 sec/batch)
iteration 7: loss 2.31, top1 accuracy 0.25, top5 accuracy 0.5, 250 ms/step
 10/100 [==>......] - 2s 20ms/step - loss: 1.2000 - accuracy: 0.5000
Epoch: [3][ 20/100]\tTime  0.150 ( 0.160)\tLoss 3.2e-01 (3.3e-01)\tAcc@1  87.50 ( 88.00)
{'loss': 0.5, 'epoch': 1.0, 'step': 3}
{"step": 4, "loss": 0.25, "seconds": 0.5}
"""
TABLE = "step,epoch,loss,seconds,stage\n0,0,1.5,0.2,train\n1,0,1.25,0.2,train\n2,0,1.0,0.3,val\n"
ROWS = """op,kind,dtype,sizes,flops,read,written,device_us,host_us,calls,workspace
aten.mm,mm,float32,"{""m"": 64, ""k"": 64, ""n"": 64}",524288,32768,16384,5.5,9.0,10,0
"""
TRACE = {
    "deviceProperties": [{"name": "NVIDIA H200"}],
    "distributedInfo": {"rank": 0, "backend": "nccl"},
    "traceEvents": [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#3",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "dur": 100,
        },
        {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 5, "dur": 20}
        | {"args": {"Sequence number": 1, "External id": 7}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 8, "dur": 2}
        | {"args": {"correlation": 5}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 30}
        | {"args": {"correlation": 5, "stream": 7}},
        {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: AddmmBackward0", "pid": 1}
        | {"tid": 2, "ts": 50, "dur": 20, "args": {"Sequence number": 1}},
    ],
}


def doors(folder: Path) -> list[Door]:
    """All of them, each with a folder of its own."""
    made: list[Door] = []

    def add(name: str, file: str, spoil: Spoil, read: Callable[[Path], object], weight: int = 1) -> None:
        path = folder / name.replace(" ", "-") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        made.append(Door(name=name, path=path, spoil=spoil, read=lambda _: read(path), weight=weight))

    _runs(folder, made)
    texts = (
        ("device", "mine.toml", DEVICE, device, 3),
        ("configuration in TOML", "c.toml", CONFIG, read_config, 3),
        ("configuration in YAML", "c.yaml", YAML, read_config, 3),
        ("configuration in XML", "c.xml", XML, read_config, 2),
        ("labels in TOML", "labels.toml", 'n01 = "cat"\nn02 = "dog"\n', read_labels, 1),
        ("labels in lines", "labels.txt", "n01 cat\nn02 dog\n", read_labels, 1),
        ("log", "train.log", LOG, _collect, 6),
        ("table", "train.csv", TABLE, _collect, 2),
        ("rows of a sweep", "rows.csv", ROWS, lambda path: list(read_rows(path)), 2),
    )
    for name, file, text, read, weight in texts:
        add(name, file, lambda rng, text=text: mutations.of_text(text, rng), read, weight)
    add("labels in JSON", "l.json", _json({"n01": "cat", "n02": "dog"}), read_labels)
    timeline = Path(__file__).parents[1] / "runs" / "importers" / "data" / "timeline-0.json"
    add("trace", "trace.json", _json(TRACE), _collect, 6)
    add(
        "packed trace",
        "trace.json.gz",
        _bytes(gzip.compress(json.dumps(TRACE).encode(), mtime=0)),
        _collect,
        2,
    )
    add("timeline", "timeline.json", _json(json.loads(timeline.read_text())), _collect, 2)
    add("workload", "w.json", _json(a_workload().document()), _workload, 4)
    add("prediction", "p.json", _json(_predictions()), _prediction, 6)
    add("calibration", "c.npz", _bytes(_calibration(folder / "c.npz")), Calibration.load, 3)
    state = folder / "run" / "checkpoint" / "last.pt"
    checkpoint.save(state, {"step": 3, "weights": torch.zeros(4)})
    spoil = _bytes(state.read_bytes())
    made.append(Door(name="checkpoint", path=state, spoil=spoil, read=lambda _: checkpoint.load(state)))
    for kind in ("jpeg", "png"):
        add(kind, f"image.{kind}", _bytes(_picture(kind)), _image, 2)
    return made


def _runs(folder: Path, made: list[Door]) -> None:
    """The files of a run, each read with the others whole."""
    readers = (("shown", _show, 5), ("page", _page, 1), ("compared", _compare, 1))
    for place, (name, read, weight) in enumerate(readers):
        path = a_run(folder / f"run-{place}", environment=H200 | {"threads": 2, "torch": "2.13"}).path
        document = json.loads((path / "run.json").read_text())
        (path / "run.json").write_text(json.dumps(document | {"summary": SUMMARY | document["summary"]}))
        (path / "health-r1.json").write_text(json.dumps({"lost_rows": {"steps": 3}, "reason": "full"}))
        for file in ("run.json", "network.json", "health-r1.json"):
            spoil = _json(json.loads((path / file).read_text()))
            each = weight * (3 if file == "run.json" else 1)
            made.append(_of_run(f"{file}, {name}", path, file, spoil, read, each))
        for table in ("steps", "layers"):
            (part,) = (path / table).glob("*.parquet")
            spoil = _bytes(part.read_bytes())
            made.append(_of_run(f"{table}, {name}", path, f"{table}/{part.name}", spoil, read, weight))
    kind = {
        "kind": "all_reduce",
        "calls": 3,
        "bytes": 12,
        "wire_bytes": 6.0,
        "seconds": 1.0,
        "exposed_s": 0.5,
    }
    bucket = {"bucket": 0, "layers": ["fc1"], "calls": 3, "bytes": 12, "seconds": 1.0, "exposed_s": 0.5}
    exchanged = {"steps": 3, "collectives": [kind], "buckets": [bucket]}
    path = a_run(folder / "run-of-ranks").path
    for rank in (0, 1):
        (path / f"exchanges-r{rank}.json").write_text(json.dumps(exchanged))
    spoil = _json(exchanged)
    made.append(_of_run("exchanges of a rank", path, "exchanges-r1.json", spoil, _exchanged, 2))
    document = a_workload().document()
    path = a_run(folder / "run-of-workload").path
    made.append(
        _of_run(
            "workload of a run", path, "workload.json", _json(document), lambda run: workload_of(load(run)), 2
        )
    )


def _exchanged(run: Path) -> object:
    return read_exchanges(load(run))


def _of_run(
    name: str, run: Path, file: str, spoil: Spoil, read: Callable[[Path], object], weight: int
) -> Door:
    return Door(name=name, path=run / file, spoil=spoil, read=lambda _: read(run), weight=weight)


def _json(document: object) -> Spoil:
    text = json.dumps(document).encode()
    return lambda rng: (
        mutations.of_bytes(text, rng) if rng.random() < 0.2 else mutations.of_json(document, rng)
    )


def _predictions() -> object:
    """A document with all that can be asked of a prediction."""
    made = predicted(a_workload())
    stages = {"storage": 0.001, "decode": 0.002, "link": 0.001, "device": made.step_s}
    times = FlowTimes(
        stages=stages, step_s=made.step_s, starving="device", samples=64, remedies=(Remedy("more", 0.01),)
    )
    choice = DeviceChoice(
        wanted="the cheapest",
        by="dollars",
        within_hours=1.0,
        under_dollars=None,
        chosen=made,
        runner_up=None,
        closest=None,
        considered=3,
        left_out=("t4: too small",),
        why="it costs least",
    )
    view = PredictionView(
        predictions=(made,),
        flows=(DataFlow(device="h200", batch=64, gpus=1, times=times, rests_on=("a rate",)),),
        largest=(Largest(device="h200", batch=128, prediction=made, readings=3, exact=True),),
        choices=(choice,),
        explanation=explain(a_workload(), device("h200"), made),
    )
    return plain(view.document())


def _bytes(data: bytes) -> Spoil:
    return lambda rng: mutations.of_bytes(data, rng)


def _calibration(path: Path) -> bytes:
    nodes = {"feature": np.zeros((2, 3), np.int16), "threshold": np.zeros((2, 3), np.float32)}
    children = np.array([[1, 1, 2]] * 2, np.int16), np.array([[2, 1, 2]] * 2, np.int16)
    forest = Forest(
        start=0.1, depth=1, **nodes, left=children[0], right=children[1], value=np.ones((2, 3), np.float32)
    )
    Calibration(
        device="h200",
        peaks={"float32": 6e13},
        bandwidth=4e12,
        forests={("mm", "float32"): forest},
        host_us={"mm/float32": (5.0, 1.0)},
        facts={"date": "2026-11-16"},
    ).save(path)
    return path.read_bytes()


def _picture(kind: str) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray((np.arange(32 * 32 * 3) % 251).astype(np.uint8).reshape(32, 32, 3)).save(out, kind)
    return out.getvalue()
