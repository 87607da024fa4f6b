"""What to look at first: a few sentences that follow from the numbers of `content`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from laptime.views.format import called, milliseconds, name, percent, plural

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
_LITTLE, _NEGLIGIBLE = 0.05, 0.01  # of a step: the largest layer is not first, or not worth a sentence
_LARGE = 0.10  # of a step: compute outside all layers is worth a sentence
_LONGER = 1.02  # sums of medians are no more exact
_ALIKE = 0.02  # shares by medians and by means that differ by more are not one number
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
    """A lost loss, the largest layer, what a typical step and a few steps lose most time to, the noise.

    A layer that a step spends little on comes after what the step does spend its time on, or not at all.
    """
    stage = found["train"] or found["validation"]
    if stage is None:
        return ["No step was recorded, so there is nothing to look at."]
    unit = found["run"]["unit"]
    losses = [*_losses(stage, found)]
    of_step = _largest_of_step(stage)
    if of_step is not None and of_step < _NEGLIGIBLE:
        first = [*losses, *_without_layers(stage, unit, known=bool(losses))]
    elif of_step is not None and of_step < _LITTLE:
        first = [*losses, *_largest_layer(stage, unit)]
    else:
        first = [*_largest_layer(stage, unit), *losses]
    return [*_diverged(stage), *first, *_noise(stage)]


def _diverged(stage: Stage) -> Iterator[str]:
    """Steps of a network that has stopped learning are not worth making faster."""
    loss = stage["course"]["loss"]
    if loss and loss["not_finite"]:
        steps = f"{loss['not_finite']:,} of {plural(loss['steps'], 'step')}"
        yield f"The loss is not finite in {steps}: a lower learning rate or clipped gradients come first."


def _timed_layers(stage: Stage) -> list[Mapping[str, Any]]:
    return [one for one in stage["layers"] if one["module"] and one["total_s"]]


def _largest_of_step(stage: Stage) -> float | None:
    """The largest layer's share of a step; None without layers."""
    largest = max((float(one["total_s"]) for one in _timed_layers(stage)), default=None)
    wall = stage["wall_s"]["median"] if stage["wall_s"] else 0.0
    compute = sum(one["total_s"] or 0.0 for one in stage["layers"])
    return None if largest is None else largest / max(wall, compute)


def _without_layers(stage: Stage, unit: str, *, known: bool) -> Iterator[str]:
    """Where the compute of a step is whose layers take next to nothing; `known` is what else it does."""
    wall = stage["wall_s"]["median"] if stage["wall_s"] else 0.0
    others = [one for one in stage["layers"] if not one["module"] and one["total_s"]]
    most = max(others, key=lambda one: one["total_s"], default=None)
    if most is not None and wall and most["total_s"] >= _LARGE * wall:
        share, time = percent(min(1.0, most["total_s"] / wall)), milliseconds(most["total_s"])
        yield f"{share} of a step, {time} ms, is in {name(most['layer'])}, outside every {unit} with a name."
    elif not known:
        layers = plural(len(_timed_layers(stage)), unit)
        yield f"No {unit} stands out: a step is spread over {layers} that take less than 1 % of it each."


def _largest_layer(stage: Stage, unit: str) -> Iterator[str]:
    layers = _timed_layers(stage)
    if not layers:
        return
    whole = sum(one["total_s"] for one in stage["layers"])
    top = max(layers, key=lambda one: one["total_s"])
    phases = {phase: top[phase]["median"] for phase in ("forward", "backward", "update") if top[phase]}
    most = max(phases, key=lambda phase: phases[phase])
    part = "most of it" if phases[most] > 0.5 * sum(phases.values()) else "the largest part"
    where = "" if len(phases) < 2 else f", {part} in {most}"
    slower = longer_than_a_step(stage)
    takes = (
        f"takes {percent(top['share'])} of the compute, {milliseconds(top['total_s'])} of "
        f"{milliseconds(whole)} ms{' in steps with layer marks' if slower else ''}{where}."
    )
    if len(layers) > 1 and top["share"] < 0.10:
        yield f"No {unit} stands out: {called(top['layer'], unit)} {takes}"
    else:
        yield f"{unit.capitalize()} {name(top['layer'])} {takes}"


def longer_than_a_step(stage: Stage) -> bool:
    """Whether the layers take longer than a median step, of which they are part: marked ones were slow."""
    compute = sum(one["total_s"] or 0.0 for one in stage["layers"])
    return bool(stage["wall_s"]) and compute > _LONGER * stage["wall_s"]["median"] > 0


def _losses(stage: Stage, found: Mapping[str, Any]) -> Iterator[str]:
    if not stage["accounted"]:
        yield "The log holds no accounts: it does not say where the time of a step went."
        return
    typical = {one["account"]: _typical(one, stage) for one in stage["accounts"]}
    worth = {account: share for account, share in typical.items() if share >= _WORTH.get(account, 2.0)}
    if worth:
        account = max(worth, key=lambda one: worth[one])
        yield _in_every_step(account, worth[account], stage, found)
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


def _in_every_step(account: str, typical: float, stage: Stage, found: Mapping[str, Any]) -> str:
    share = percent(typical)
    device = str((found["run"]["environment"].get("device") or {}).get("type", "cpu"))
    if account == "idle" and device == "cpu":
        return f"{share} of the traced steps passes between operators (idle): there is little work in each."
    if account == "idle":
        return (
            f"The device is idle for {share} of the traced steps: the host launches work too slowly for it."
        )
    why = _REMEDY[account]
    if account == "instrument" and (found["kernels"] or stage["wall_s"]["noise"] == "too few"):
        why += f" ({_recorder(found)})"
    of_all = next(float(one["share"] or 0.0) for one in stage["accounts"] if one["account"] == account)
    if abs(of_all - typical) <= _ALIKE:
        return f"{percent(of_all)} of a step goes to {account}: {why}."  # as the books have it
    return f"{share} of a typical step goes to {account}, {percent(of_all)} of the whole time: {why}."


def _in_a_few_steps(account: Mapping[str, Any], stage: Stage, found: Mapping[str, Any]) -> str:
    word = account["account"]
    why = _recorder(found) if word == "instrument" else _NOW_AND_THEN.get(word, _REMEDY[word])
    many = " of all ranks" if stage["ranks"] > 1 else ""
    steps = f"{account['half_in']:,} of {account['seconds']['count']:,} steps{many}"
    return f"{percent(account['share'])} of the time goes to {word}, half of that in {steps}: {why}."


def _recorder(found: Mapping[str, Any]) -> str:
    """What the recorder does in some steps and not in others. Which of that took the time is not known."""
    marked = found["recorder"]["instrumented_steps"]
    work = ["the first steps find the layers"]
    if isinstance(marked, int) and marked:
        work.append(f"{plural(marked, 'step')} {'has' if marked == 1 else 'have'} layer marks")
    traced = (found["kernels"] or {}).get("steps") or ()
    if traced:
        work.append(f"{plural(len(traced), 'step')} {'was' if len(traced) == 1 else 'were'} kernel-traced")
    return ", ".join(work)


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
