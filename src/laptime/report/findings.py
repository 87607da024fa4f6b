"""What to look at first: one to three sentences that follow from the numbers of `content`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laptime.report.words import milliseconds, name, percent

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
    "host": "Python between the phases (zero_grad, logging, clipping)",
    "instrument": "the recorder's own work, mostly around kernel traces; the medians are free of that",
    "unexplained": "it is in no account that laptime knows",
}
_NOISE: dict[str, str] = {
    "noisy": "differences of a few per cent are within the noise",
    "unreliable": "trust the shares, not the milliseconds; `laptime doctor` says what would steady them",
    "too few": "record more steps before comparing them with anything",
}


def look_first(found: Mapping[str, Any]) -> list[str]:
    """At most three sentences: the largest layer, the largest loss of time, the noise."""
    stage = found["train"] or found["validation"]
    if stage is None:
        return ["No step was recorded, so there is nothing to look at."]
    device = str((found["run"]["environment"].get("device") or {}).get("type", "cpu"))
    sentences = (_largest_layer(stage), _largest_loss(stage, device), _noise(stage))
    return [sentence for sentence in sentences if sentence]


def _largest_layer(stage: Mapping[str, Any]) -> str | None:
    layers = [one for one in stage["layers"] if one["module"] and one["total_s"]]
    if not layers:
        return None
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
    return f"No layer stands out: {takes}" if even else f"Layer {takes}"


def _largest_loss(stage: Mapping[str, Any], device: str) -> str | None:
    shares = {one["account"]: one["share"] for one in stage["accounts"] if one["share"] is not None}
    losses = {
        account: shares[account] for account, least in _WORTH.items() if shares.get(account, 0.0) >= least
    }
    if not losses:
        return None
    account = max(losses, key=lambda one: losses[one])
    share = percent(losses[account])
    if account == "idle" and device == "cpu":
        return f"{share} of the traced steps passes between operators (idle): there is little work in each."
    if account == "idle":
        return (
            f"The device is idle for {share} of the traced steps: the host launches work too slowly for it."
        )
    return f"{share} of a step goes to {account}: {_REMEDY[account]}."


def _noise(stage: Mapping[str, Any]) -> str | None:
    wall = stage["wall_s"]
    remedy = _NOISE.get(wall["noise"]) if wall else None
    if remedy is None:
        return None
    if wall["noise"] == "too few":
        return f"Only {wall['count']} steps were timed: {remedy}."
    return (
        f"Step times are {wall['noise']} (half of them within ±{percent(wall['spread'] / 2, 0)}): {remedy}."
    )
