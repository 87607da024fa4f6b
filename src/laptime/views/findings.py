"""What to look at first, and what recording cost: sentences that follow from the numbers of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from laptime.model import Account, Noise, Phase, Statistics
from laptime.runs import LayerSummary
from laptime.views.format import UNKNOWN, called, figures, memory, milliseconds, name, percent, plural
from laptime.views.ranks import RanksView
from laptime.views.ranks_tables import bubbles, slow_rank
from laptime.views.run_view import RunView, StageView

# The share of a step from which an account is reported.
_WORTH: dict[str, float] = {
    **{account: 2.0 if account.compute else 0.10 for account in Account},  # of compute, layers are reported
    "idle": 0.15,
    "host": 0.15,
    "instrument": 0.05,
    "unexplained": 0.01,
}
_NEGLIGIBLE = 0.01  # share of a step below which the largest layer is left out
_LARGE = 0.10  # share of a step from which compute outside all layers is reported
_LONGER = 1.02  # sums of medians are no more exact
_ALIKE = 0.02  # shares by medians and by means that differ by more are not one number
_REMEDY: dict[str, str] = {
    **{account: account.meaning for account in Account},
    "data_wait": "waiting for the next batch; more loader workers or cheaper decoding would shorten it",
    "copy": "copying batches to the device; pinned memory and non_blocking=True would hide it",
    "communication": "waiting for other workers",
    "host": "Python between the phases (zero_grad, clipping, logging, checkpoints)",
    "unexplained": "laptime could not tell what ran in this time",
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
_COMPARABLE = 0.5  # beyond, the traced and the untraced steps were not the same work on the same machine
_WIDEST = 0.2  # an interval of ±10 points, as recorder/budget.py has it; older runs call wider ones measured
_DUST = 1e-9


def look_first(view: RunView) -> list[str]:
    """A loss that is not finite, then the largest layer and what steps lose time to, the largest first."""
    stage = view.main
    if "steps" in view.lost:
        return []  # the notes say that they are gone
    if stage is None:
        return ["No step was recorded, so there is nothing to look at."]
    told = []
    loss = stage.course.loss
    if loss and loss.not_finite:  # steps of a network that has stopped learning are not worth making faster
        steps = f"{loss.not_finite:,} of {plural(loss.steps, 'step')}"
        told.append(
            f"The loss is not finite in {steps}: a lower learning rate or clipped gradients come first."
        )
    slow = slow_rank(view.ranks) if view.ranks else None
    losses = [*_losses(stage, view)]
    lost = max((row.share for account, row in stage.accounts.items() if not account.compute), default=0.0)
    layers = [layer for layer in stage.timed_layers if layer.is_module]
    largest = max(layers, key=lambda layer: layer.total_s, default=None)
    if largest is None:
        return [*told, *filter(None, [slow]), *losses, *_noise(stage.wall_s)]
    share = largest.total_s / max(_mean_wall(stage), stage.layers.total_s)
    if share < _NEGLIGIBLE:
        of_layers = [*_without_layers(stage, len(layers), view.unit, known=bool(losses))]
    else:
        of_layers = [_largest_layer(largest, len(layers), stage, view.unit)]
    told += filter(None, [slow])
    told += [*of_layers, *losses] if share > lost else [*losses, *of_layers]
    return [*told, *_noise(stage.wall_s)]


def _mean_wall(stage: StageView) -> float:
    return stage.wall_s.mean if stage.wall_s.count else 0.0


def _without_layers(stage: StageView, count: int, unit: str, *, known: bool) -> Iterator[str]:
    """Where a step computes if its layers take almost no time; `known`: other findings explain the step."""
    wall = _mean_wall(stage)
    others = [layer for layer in stage.timed_layers if not layer.is_module]
    most = max(others, key=lambda layer: layer.total_s, default=None)
    if most is not None and wall and most.total_s >= _LARGE * wall:
        share, time = percent(min(1.0, most.total_s / wall)), milliseconds(most.total_s)
        yield f"{share} of a step, {time} ms, is in {name(most.layer)}, outside every {unit} with a name."
    elif not known:
        layers = plural(count, unit)
        yield f"No {unit} stands out: a step is spread over {layers} that take less than 1 % of it each."


def _largest_layer(top: LayerSummary, count: int, stage: StageView, unit: str) -> str:
    phases = {phase: top.seconds(phase) for phase in Phase if top.phase(phase)}
    most = max(phases, key=lambda phase: phases[phase])
    part = "most of it" if phases[most] > 0.5 * top.total_s else "the largest part"
    where = "" if len(phases) < 2 else f", {part} in {most}"
    # Layers that take longer than the mean step, of which they are part: the marked steps were slow.
    longer = stage.layers.total_s > _LONGER * _mean_wall(stage) > 0
    slower = " in steps with layer marks" if longer else ""
    takes = (
        f"takes {percent(top.share)} of the compute, {milliseconds(top.total_s)} of "
        f"{milliseconds(stage.layers.total_s)} ms{slower}{where}."
    )
    if count > 1 and top.share < 0.10:
        return f"No {unit} stands out: {called(top.layer, unit)} {takes}"
    return f"{unit.capitalize()} {name(top.layer)} {takes}"


def _losses(stage: StageView, view: RunView) -> Iterator[str]:
    """What a typical step loses most time to, and what a few steps do."""
    if not stage.accounted:
        yield "The log holds no accounts: it does not say where the time of a step went."
        return
    typical = {account: _typical(account, stage) for account in stage.accounts}
    worth = {account: share for account, share in typical.items() if share >= _WORTH[account]}
    waited = _waited_for_straggler(view)
    for_straggler = {
        account
        for account in (Account.COMMUNICATION, Account.IDLE)
        if worth.get(account, math.inf) <= 2 * waited  # the slow rank is named already
    }
    worth = {account: share for account, share in worth.items() if account not in for_straggler}
    if worth:
        account = max(worth, key=lambda account: worth[account])
        yield _in_every_step(account, worth[account], stage, view)
    rare = [
        row
        for account, row in stage.accounts.items()
        if account not in worth and account not in for_straggler and row.share >= _WORTH[account]
    ]
    if rare:
        row = max(rare, key=lambda row: row.share)
        word = row.account
        why = _recorder(view) if word is Account.INSTRUMENT else _NOW_AND_THEN.get(word, _REMEDY[word])
        many = " of all ranks" if stage.ranks > 1 else ""
        steps = f"{row.half_in:,} of {row.seconds.count:,} steps{many}"
        yield f"{percent(row.share)} of the time goes to {word}, half of that in {steps}: {why}."


def _waited_for_straggler(view: RunView) -> float:
    """The share of a step that ranks wait for a slow one, in the mean of all ranks."""
    waiting = view.ranks.waiting if view.ranks else None
    if view.ranks is None or waiting is None or waiting.straggler is None:
        return 0.0
    ranks = len(view.ranks.paces)
    return waiting.straggler.waited_share * (ranks - 1) / ranks


def _typical(account: Account, stage: StageView) -> float:
    """An account's share of a typical step: by medians, which a few steps with a checkpoint do not move."""
    row, wall = stage.accounts[account], stage.wall_s.median
    if row.traced or account is Account.IDLE:  # its share is of the traced steps alone
        return row.share
    return row.seconds.median / wall if row.seconds.count and wall else 0.0


def _in_every_step(account: Account, typical: float, stage: StageView, view: RunView) -> str:
    share = percent(typical)
    if account is Account.IDLE and view.ranks is not None and view.ranks.bubbles:
        return bubbles(view.ranks)
    if account is Account.IDLE and view.device.get("type", "cpu") == "cpu":
        return f"{share} of the traced steps passes between operators (idle): there is little work in each."
    if account is Account.IDLE:
        return (
            f"The device is idle for {share} of the traced steps: the host launches work too slowly for it."
        )
    why = _REMEDY[account]
    if account is Account.COMMUNICATION and view.ranks is not None and view.ranks.collectives:
        why = _exchange(view.ranks)
    if account is Account.INSTRUMENT and (view.kernels or stage.wall_s.noise is Noise.TOO_FEW):
        why += f" ({_recorder(view)})"
    of_all = stage.accounts[account].share
    if abs(of_all - typical) <= _ALIKE:
        return f"{percent(of_all)} of a step goes to {account}: {why}."  # as the table of accounts has it
    return f"{share} of a typical step goes to {account}, {percent(of_all)} of the whole time: {why}."


def _exchange(ranks: RanksView) -> str:
    """What ranks wait for most, and what would help where it is gradients."""
    most = max(ranks.collectives, key=lambda each: each.exposed_s)
    kinds = {each.kind for each in ranks.collectives}
    wire = memory(most.bytes if most.wire_bytes is None else most.wire_bytes)
    at = "" if most.bandwidth is None else f" at {figures(most.bandwidth * 8e-6, 3)} Mbit/s"
    remedy = ""
    if most.kind == "parameter_server":
        remedy = "; more parallel.servers, a larger batch or train.accumulate would lower it"
    elif ranks.buckets or "reduce_scatter" in kinds:
        remedy = "; a larger batch or train.accumulate would lower it"
    return f"waiting for {name(most.kind)}, {wire} a step{at}{remedy}"


def _recorder(view: RunView) -> str:
    """What the recorder does in some steps and not in others. Which of that took the time is not known."""
    marked, traced = view.recorder.instrumented_steps, len(view.kernels.get("steps") or ())
    work = ["the first steps find the layers"]
    if marked:
        work.append(f"{plural(marked, 'step')} {'has' if marked == 1 else 'have'} layer marks")
    if traced:
        work.append(f"{plural(traced, 'step')} {'was' if traced == 1 else 'were'} kernel-traced")
    return ", ".join(work)


def _noise(wall: Statistics) -> Iterator[str]:
    remedy = _NOISE.get(wall.noise)
    if remedy is None or not wall.mean:
        return
    if wall.noise is Noise.TOO_FEW:
        were = f"{plural(wall.count, 'step')} {'was' if wall.count == 1 else 'were'}"
        yield f"Only {were} timed: {remedy}."
    elif wall.spread / 2 <= 1:
        yield f"Step times are {wall.noise} (half of them within ±{percent(wall.spread / 2, 0)}): {remedy}."
    else:  # the third quartile is at least three times the first
        fold = "tenfold" if wall.q3 > 10 * wall.q1 else "threefold"
        yield f"Step times are {wall.noise} (the middle half varies more than {fold}): {remedy}."


# -- what recording cost ---------------------------------------------------------------------------


def recorder(view: RunView) -> Iterator[str]:
    """What recording cost, how that is known, and whether the kernel trace agrees with the marks."""
    overhead, budget, kernels = view.recorder.overhead, view.recorder.budget or {}, view.kernels
    if view.source is not None or view.run.simulated:
        return  # nothing was recorded
    if overhead is None:
        yield "What recording cost is not known for this run."
    else:
        yield _cost(overhead)
        paid, marked, how = (budget.get(key) for key in ("paid", "marked_share", "paid_how"))
        if isinstance(paid, float) and isinstance(marked, float):
            whole, steps = percent(paid, 2), percent(marked)
            yield f"The whole run paid {whole} for them ({how}): {steps} of its training steps have marks."
        part = view.main
        if overhead["how"] == "estimated" and part is not None and part.wall_s.median:
            # An estimate from the marks does not hold the recorder's own account.
            share = part.accounts[Account.INSTRUMENT].seconds.median / part.wall_s.median
            if share >= 0.001:
                yield f"The recorder's other work (instrument) takes {percent(share)} of a step more."
    apart = kernels.get("reconciliation")
    if apart and kernels.get("steps") and None not in apart.values():
        traced, far = plural(len(kernels["steps"]), "step"), percent(apart["spans_apart"])
        comparable = apart["spans_apart"] <= _COMPARABLE
        verdict = (
            f"kernels fill {percent(apart['busy_share'])} of them" if comparable else "too far to compare"
        )
        yield f"Kernel trace of {traced}: layer times differ by {far} from untraced steps; {verdict}."
    if kernels.get("detach") and not kernels["detach"]["clean"]:
        yield f"After the kernel trace, bare steps stayed slower by {signed(kernels['detach']['ratio'])}."


def known_cost(overhead: Mapping[str, Any]) -> str:
    """How the overhead of marks is known: measured, estimated, or unknown: interval too wide or below 1."""
    how, low, high = str(overhead["how"]), overhead["low"], overhead["high"]
    if how != "measured":
        return how
    told = None not in (overhead["ratio"], low, high) and high >= 1.0 and high - low <= _WIDEST + _DUST
    return how if told else "unknown"


def _cost(overhead: Mapping[str, Any]) -> str:
    ratio, low, high = (signed(overhead[key]) for key in ("ratio", "low", "high"))
    how = known_cost(overhead)
    if how == "estimated":
        few = "too few steps could be compared" if overhead["bare_steps"] else "no step went without them"
        return f"Layer marks cost about {ratio} of a step: {how} from their number, since {few}."
    pairs = overhead.get("pairs")
    steps = plural(overhead["instrumented_steps"], "step")
    compared = (
        f"{plural(pairs, 'time')} beside bare neighbours"
        if isinstance(pairs, int)
        else f"{steps} with marks against {overhead['bare_steps']:,} without"
    )
    interval = f"95 % interval {low} to {high}"
    if how == "measured":
        return f"Layer marks cost {ratio} of a step that has them, {interval}: measured, {compared}."
    by_number = overhead.get("estimated")
    about = f" By their number it is about {signed(by_number)}." if isinstance(by_number, float) else ""
    noisy = f"the steps are too noisy ({compared}, {interval})"
    return f"What layer marks cost is not known: {noisy}.{about}"


def signed(ratio: float | None) -> str:
    """A ratio as what it adds: `+0.8 %`."""
    return UNKNOWN if ratio is None else f"{(ratio - 1) * 100:+.1f} %"
