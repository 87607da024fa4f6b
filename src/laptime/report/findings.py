"""What to look at first: a few sentences that follow from the numbers of `content`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from laptime.report.words import milliseconds, name, percent, plural

# From these shares of a step on, an account that is no compute is worth a sentence.
_WORTH: dict[str, float] = {
    "data_wait": 0.10,
    "copy": 0.10,
    "communication": 0.10,
    "idle": 0.15,
    "host": 0.15,
    "instrument": 0.05,
    "unexplained": 0.01,
}
_REMEDY: dict[str, str] = {
    "data_wait": "waiting for the next batch; more loader workers or cheaper decoding would shorten it",
    "copy": "copying batches to the device; pinned memory and non_blocking=True would hide it",
    "communication": "waiting for other workers",
    "host": "Python between the phases (zero_grad, clipping, logging, checkpoints)",
    "instrument": "the recorder's own work",
    "unexplained": "it is in no account that laptime knows",
}
# Of accounts that a typical step has little of.
_NOW_AND_THEN: dict[str, str] = {
    "data_wait": "the loader starts anew or falls behind there",
    "host": "checkpoints, or what else the loop does now and then",
}
_NOISE: dict[str, str] = {
    "noisy": "differences of a few per cent are within the noise",
    "unreliable": "trust the shares, not the milliseconds; `laptime doctor` says what would steady them",
    "too few": "record more steps before comparing them with anything",
}
Stage = Mapping[str, Any]


def look_first(found: Mapping[str, Any]) -> list[str]:
    """A lost loss, the largest layer, what a typical step and a few steps lose most time to, the noise."""
    stage = found["train"] or found["validation"]
    if stage is None:
        return ["No step was recorded, so there is nothing to look at."]
    largest = _largest_layer(stage, found["run"]["unit"])
    return [*_diverged(stage), *largest, *_losses(stage, found), *_noise(stage)]


def _diverged(stage: Stage) -> Iterator[str]:
    """Steps of a network that has stopped learning are not worth making faster."""
    loss = stage["course"]["loss"]
    if loss and loss["not_finite"]:
        steps = f"{loss['not_finite']:,} of {plural(loss['steps'], 'step')}"
        yield f"The loss is not finite in {steps}: a lower learning rate or clipped gradients come first."


def _largest_layer(stage: Stage, unit: str) -> Iterator[str]:
    layers = [one for one in stage["layers"] if one["module"] and one["total_s"]]
    if not layers:
        return
    whole = sum(one["total_s"] for one in stage["layers"])
    top = max(layers, key=lambda one: one["total_s"])
    phases = {phase: top[phase]["median"] for phase in ("forward", "backward", "update") if top[phase]}
    most = max(phases, key=lambda phase: phases[phase])
    where = "" if len(phases) < 2 else f", most of it in {most}"
    takes = (
        f"{name(top['layer'])} takes {percent(top['share'])} of the compute, "
        f"{milliseconds(top['total_s'])} of {milliseconds(whole)} ms{where}."
    )
    even = len(layers) > 1 and top["share"] < 0.10
    yield f"No {unit} stands out: {takes}" if even else f"{unit.capitalize()} {takes}"


def _losses(stage: Stage, found: Mapping[str, Any]) -> Iterator[str]:
    if not stage["accounted"]:
        yield "The log holds no accounts: it does not say where the time of a step went."
        return
    typical = {one["account"]: _typical(one, stage) for one in stage["accounts"]}
    worth = {account: share for account, share in typical.items() if share >= _WORTH.get(account, 2.0)}
    if worth:
        account = max(worth, key=lambda one: worth[one])
        yield _in_every_step(account, percent(worth[account]), stage, found)
    rare = [
        one
        for one in stage["accounts"]
        if one["account"] not in worth and (one["share"] or 0.0) >= _WORTH.get(one["account"], 2.0)
    ]
    if rare:
        yield _in_a_few_steps(max(rare, key=lambda one: float(one["share"])), stage, found)


def _typical(account: Mapping[str, Any], stage: Stage) -> float:
    """An account's share of a typical step: by medians, which a few steps with a checkpoint do not move."""
    if account["traced"] or account["account"] == "idle":  # its share is of the traced steps alone
        return float(account["share"] or 0.0)
    wall = stage["wall_s"]["median"] if stage["wall_s"] else 0.0
    return float(account["seconds"]["median"] / wall) if account["seconds"] and wall else 0.0


def _in_every_step(account: str, share: str, stage: Stage, found: Mapping[str, Any]) -> str:
    device = str((found["run"]["environment"].get("device") or {}).get("type", "cpu"))
    if account == "idle" and device == "cpu":
        return f"{share} of the traced steps passes between operators (idle): there is little work in each."
    if account == "idle":
        return (
            f"The device is idle for {share} of the traced steps: the host launches work too slowly for it."
        )
    why = _REMEDY[account]
    if account == "instrument" and (found["kernels"] or stage["wall_s"]["noise"] == "too few"):
        why += f", mostly {_recorder(found)}"
    return f"{share} of a step goes to {account}: {why}."


def _in_a_few_steps(account: Mapping[str, Any], stage: Stage, found: Mapping[str, Any]) -> str:
    word = account["account"]
    why = _recorder(found) if word == "instrument" else _NOW_AND_THEN.get(word, _REMEDY[word])
    steps = f"{account['half_in']} of {stage['wall_s']['count']} steps"
    return f"{percent(account['share'])} of the time goes to {word}, half of that in {steps}: {why}."


def _recorder(found: Mapping[str, Any]) -> str:
    """What the recorder spends time on in some steps and not in others."""
    return "kernel traces" if found["kernels"] else "finding the layers, which the first steps do"


def _noise(stage: Stage) -> Iterator[str]:
    wall = stage["wall_s"]
    remedy = _NOISE.get(wall["noise"]) if wall else None
    if remedy is None or not wall["mean"]:
        return
    if wall["noise"] == "too few":
        were = f"{plural(wall['count'], 'step')} {'was' if wall['count'] == 1 else 'were'}"
        yield f"Only {were} timed: {remedy}."
    else:
        half = percent(wall["spread"] / 2, 0)
        yield f"Step times are {wall['noise']} (half of them within ±{half}): {remedy}."
