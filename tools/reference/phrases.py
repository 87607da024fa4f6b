"""A phrase for each key and field that has none beside it in the code.

What has neither is an error of `make docs`, so nothing is listed without saying what it is.
"""

from __future__ import annotations

from collections.abc import Mapping

DOCUMENT: Mapping[str, str] = {
    "schema_version": "of this directory; an older one is upgraded when read, a newer one refused",
    "id": "of the run, also when its folder is renamed",
    "status": "`running`, `finished`, `failed` or `interrupted`",
    "created": "when, in UTC",
    "heartbeat": "process, machine and time of the last flush: tells a dead run from a running one",
    "config": "what was asked for",
    "environment": "machine, versions and settings",
    "summary": "what the recorder found out: overhead, shares, notes",
    "outputs": "paths of the files in this directory",
    "health": "how the writing goes, below",
}

# `health` in `run.json`; the process that writes a run is in its heartbeat.
HEALTH: Mapping[str, str] = {
    "written_rows": "on disk, by table",
    "waiting_rows": "refused by the disk and still in the writer's memory, by table: lost if it ends now",
    "lost_rows": "given up, by table",
    "last_step": "the highest number of a step that was to be written; steps are numbered without a gap",
    "problem": "what the last writing could not do; null where it did all",
    "reason": "why rows were last refused, in the system's words",
    "since": "when rows were first refused",
    "next_attempt": "when the waiting rows are tried again",
    "failed_checkpoints": "how many could not be written",
    "checkpoint_reason": "why, in the system's words",
}

# Top level of a run in `laptime show --json`.
SHOWN: Mapping[str, str] = {
    "run": "id, path, status, configuration, environment, layers and parameters",
    "health": "rows lost or waiting, by table; failed checkpoints; who writes it; `told`: that in sentences",
    "train": "books, layers, course and results of the training steps; null without any",
    "validation": "the same of the validation steps",
    "ranks": "of several ranks: pace, staleness, who waits for whom, traffic; null for one alone",
    "target": "`metric`, `value`, whether `reached`, after how many `seconds`, steps, epochs; null without",
    "recorder": "what recording cost, and how that is known",
    "kernels": "the kernel-traced steps: which, how they agree with the others, what they left behind",
    "lost": "tables that were recorded and whose files are gone",
    "notes": "remarks of the recorder",
    "look_first": "what to look at first, in sentences",
}

# Of classes of the Python interface: `Class.field`.
FIELDS: Mapping[str, str] = {
    "Run.path": "the run directory",
    **{f"Run.{name}": meaning for name, meaning in DOCUMENT.items()},
    "Simulation.network": "its name",
    "Simulation.cluster": "where it trains",
    "Simulation.plan": "how the work is spread",
    "Simulation.precision": "of the training",
    "Simulation.step_times_s": "of each step that was played",
    "Simulation.data_wait_s": "mean wait for data",
    "Simulation.memory": "of the rank that needs most",
    "Simulation.device_memory_bytes": "that a device has; None where it is not known",
    "Simulation.faults": "of the whole training",
    "Simulation.samples": "of an epoch",
    "Simulation.epochs": "of the training",
    "Simulation.notes": "what had to be assumed",
    "AccountSummary.account": "which",
    "AccountSummary.seconds": "of a step",
    "AccountSummary.total_s": "over all steps that count",
    "AccountSummary.share": "of the wall time",
    "LayerSummary.layer": "its name",
    **{f"LayerSummary.{phase}_s": "mean over all the steps" for phase in ("forward", "backward", "update")},
    "LayerSummary.kind": "class of its module",
    "LayerSummary.parameters": "how many it owns",
    "LayerSummary.forward": "seconds of a step",
    "LayerSummary.backward": "seconds of a step",
    "LayerSummary.update": "seconds of a step, allocated by parameter bytes",
    "LayerSummary.idle_s": "the same, without kernels",
    "LayerSummary.compiled": "whether torch.compile compiled it, as one unit",
    "LayerSummary.activation_bytes": "that its forward pass keeps, from a traced step",
    "LayerSummary.peak_bytes": "the most that was allocated while it ran, from a traced step",
    "Statistics.count": "samples",
    "Statistics.mean": "of them",
    "Statistics.median": "of them",
    "Statistics.q1": "first quartile",
    "Statistics.q3": "third quartile",
    "Statistics.low": "lower end of the median's 95 % interval",
    "Statistics.high": "its upper end",
    "Statistics.noise": "`steady`, `noisy`, `unreliable`, or `too few` samples to tell",
    "Prediction.network": "its class",
    "Prediction.device": "name in the catalog",
    "Prediction.batch": "samples of a step, on each GPU",
    "Prediction.precision": "`fp32`, `bf16` or `fp16`",
    "Prediction.mode": "`training` or `inference`",
    "Prediction.step_s": "the step",
    "Prediction.phases": "seconds by phase",
    "Prediction.layer_times": "what `layers()` gives",
    "Prediction.bottleneck": "what the step waits for, in words",
    "Prediction.device_memory_bytes": "what the device has; None where it is not known",
    "Prediction.samples": "in an epoch, as given",
    "Prediction.epochs": "as given",
    "Prediction.price_per_hour": "of one GPU: as given, or the catalog's example",
    "Prediction.watts": "full power of one GPU",
    "LayerSeconds.layer": "its name",
    "LayerSeconds.forward_s": "forward pass",
    "LayerSeconds.backward_s": "backward pass",
    "LayerSeconds.update_s": "optimizer",
    "Largest.device": "name in the catalog",
    "Workload.network": "its class",
    "Workload.batch": "samples of the step",
    "Workload.parameters": "how many",
    "Workload.operations": "each with its kind, shapes, FLOPs, bytes, layer and phase",
    "Workload.memory": "bytes of parameters, gradients, activations and so on, and the peak",
    "Layer.name": "what tables call it",
    "Layer.path": "of its module in the network",
    "Layer.kind": "class of its module",
    "Layer.parameters": "how many it owns; a tied one belongs to its first user",
    "Layer.parameter_bytes": "of these",
    "Layer.trainable": "whether any of them is",
    "Layer.compiled": "by torch.compile: one unit, whatever is in it",
    "Layer.flops": "of a step, where known",
    "Layer.bytes": "moved in a step, where known",
    "Layer.activation_bytes": "kept for the backward pass, where known",
    "Layer.peak_bytes": "most memory allocated while it ran, where known",
}

# Run by the tests, with a small `model`, `optimizer`, `criterion` and `loader`.
EXAMPLES: Mapping[str, str] = {
    "record": """\
with laptime.record(model, optimizer, out="runs/mine") as recording:
    for images, labels in recording.steps(loader):
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        recording.log(loss=loss)
run = recording.run
""",
    "Recorder": """\
with laptime.record(model, out="runs/by-hand") as recording:
    for images, labels in loader:
        with recording.step(images):
            with recording.account("copy"):
                images = images.clone()
            model(images)
    recording.note("forward passes only")
""",
    "LightningCallback": """\
lightning.Trainer(callbacks=[laptime.LightningCallback(out="runs/lightning")])
""",
    "TrainerCallback": """\
transformers.Trainer(..., callbacks=[laptime.TrainerCallback(out="runs/transformers")])
""",
    "load": """\
run = laptime.load("runs/mine")
len(run.steps), run.steps[0].wall_s
""",
    "Run": """\
run.accounts()["data_wait"].share  # of the wall time
run.layers()[0].forward.median
run.steps.table.column("loss")  # pyarrow
run.report("mine.html")
""",
    "predict": """\
p = laptime.predict(model, input=(3, 32, 32), batch=64, device="h200", precision="bf16")
p.step_s, p.interval_s, p.bottleneck
laptime.predict(run, device="t4", samples=50_000, epochs=10).training_s
""",
    "simulate": """\
s = laptime.simulate(
    model, input=(3, 32, 32), batch=64, cluster="dgx-h100", parallel="model,stages=2", workers=8
)
s.step_s, s.samples_per_s, s.bottleneck, s.fits
""",
    "workload": """\
asked = laptime.workload(model, input=(3, 32, 32), batch=64)
asked.flops, asked.memory.peak
laptime.predict(asked, device="l4").step_s
""",
    "largest_batch": """\
laptime.largest_batch(model, input=(3, 32, 32), device="t4").batch
""",
}
