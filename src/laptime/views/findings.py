"""What to look at first: a few sentences that follow from the numbers of a run."""

from __future__ import annotations

from collections.abc import Iterator

from laptime.model import Account, Noise, Phase
from laptime.runs import AccountSummary, LayerSummary
from laptime.views.format import called, milliseconds, name, percent, plural
from laptime.views.run_view import RunView, StageView

# The share of a step from which a non-compute account is reported.
_WORTH: dict[str, float] = {
    "data_wait": 0.10,
    "copy": 0.10,
    "communication": 0.10,
    "idle": 0.15,
    "host": 0.15,
    "instrument": 0.05,
    "unexplained": 0.01,
}
# Shares of a step below which the largest layer comes after the losses, or is left out.
_LITTLE, _NEGLIGIBLE = 0.05, 0.01
_LARGE = 0.10  # share of a step from which compute outside all layers is reported
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


def look_first(view: RunView) -> list[str]:
    """A lost loss, the largest layer, what a typical step and a few steps lose most time to, the noise.

    A layer that a step spends little on comes after what the step does spend its time on, or not at all.
    """
    stage = view.main
    if "steps" in view.lost:
        return []  # the notes say that they are gone
    if stage is None:
        return ["No step was recorded, so there is nothing to look at."]
    losses = [*_losses(stage, view)]
    of_step = _largest_of_step(stage)
    if of_step is not None and of_step < _NEGLIGIBLE:
        first = [*losses, *_without_layers(stage, view.unit, known=bool(losses))]
    elif of_step is not None and of_step < _LITTLE:
        first = [*losses, *_largest_layer(stage, view.unit)]
    else:
        first = [*_largest_layer(stage, view.unit), *losses]
    return [*_diverged(stage), *first, *_noise(stage)]


def _diverged(stage: StageView) -> Iterator[str]:
    """Steps of a network that has stopped learning are not worth making faster."""
    loss = stage.course.loss
    if loss and loss.not_finite:
        steps = f"{loss.not_finite:,} of {plural(loss.steps, 'step')}"
        yield f"The loss is not finite in {steps}: a lower learning rate or clipped gradients come first."


def _modules(stage: StageView) -> list[LayerSummary]:
    return [layer for layer in stage.timed_layers if layer.is_module]


def _mean_wall(stage: StageView) -> float:
    return stage.wall_s.mean if stage.wall_s.count else 0.0


def _largest_of_step(stage: StageView) -> float | None:
    """The largest layer's share of a step; None without layers."""
    largest = max((layer.total_s for layer in _modules(stage)), default=None)
    return None if largest is None else largest / max(_mean_wall(stage), stage.layers.total_s)


def _without_layers(stage: StageView, unit: str, *, known: bool) -> Iterator[str]:
    """Where a step computes if its layers take almost no time; `known`: other findings explain the step."""
    wall = _mean_wall(stage)
    others = [layer for layer in stage.timed_layers if not layer.is_module]
    most = max(others, key=lambda layer: layer.total_s, default=None)
    if most is not None and wall and most.total_s >= _LARGE * wall:
        share, time = percent(min(1.0, most.total_s / wall)), milliseconds(most.total_s)
        yield f"{share} of a step, {time} ms, is in {name(most.layer)}, outside every {unit} with a name."
    elif not known:
        layers = plural(len(_modules(stage)), unit)
        yield f"No {unit} stands out: a step is spread over {layers} that take less than 1 % of it each."


def _largest_layer(stage: StageView, unit: str) -> Iterator[str]:
    layers = _modules(stage)
    if not layers:
        return
    top = max(layers, key=lambda layer: layer.total_s)
    phases = {phase: top.seconds(phase) for phase in Phase if top.phase(phase)}
    most = max(phases, key=lambda phase: phases[phase])
    part = "most of it" if phases[most] > 0.5 * top.total_s else "the largest part"
    where = "" if len(phases) < 2 else f", {part} in {most}"
    slower = " in steps with layer marks" if longer_than_a_step(stage) else ""
    takes = (
        f"takes {percent(top.share)} of the compute, {milliseconds(top.total_s)} of "
        f"{milliseconds(stage.layers.total_s)} ms{slower}{where}."
    )
    if len(layers) > 1 and top.share < 0.10:
        yield f"No {unit} stands out: {called(top.layer, unit)} {takes}"
    else:
        yield f"{unit.capitalize()} {name(top.layer)} {takes}"


def longer_than_a_step(stage: StageView) -> bool:
    """Whether the layers take longer than a mean step, of which they are part: marked ones were slow."""
    return stage.layers.total_s > _LONGER * _mean_wall(stage) > 0


def _losses(stage: StageView, view: RunView) -> Iterator[str]:
    if not stage.accounted:
        yield "The log holds no accounts: it does not say where the time of a step went."
        return
    typical = {account.account: _typical(account, stage) for account in stage.accounts.values()}
    worth = {account: share for account, share in typical.items() if share >= _WORTH.get(account, 2.0)}
    if worth:
        account = max(worth, key=lambda account: worth[account])
        yield _in_every_step(account, worth[account], stage, view)
    rare = [
        account
        for account in stage.accounts.values()
        if account.account not in worth and account.share >= _WORTH.get(account.account, 2.0)
    ]
    if rare:
        yield _in_a_few_steps(max(rare, key=lambda account: account.share), stage, view)


def _typical(account: AccountSummary, stage: StageView) -> float:
    """An account's share of a typical step: by medians, which a few steps with a checkpoint do not move."""
    if account.traced or account.account is Account.IDLE:  # its share is of the traced steps alone
        return account.share
    wall = stage.wall_s.median
    return account.seconds.median / wall if account.seconds.count and wall else 0.0


def _in_every_step(account: Account, typical: float, stage: StageView, view: RunView) -> str:
    share = percent(typical)
    if account is Account.IDLE and view.device.get("type", "cpu") == "cpu":
        return f"{share} of the traced steps passes between operators (idle): there is little work in each."
    if account is Account.IDLE:
        return (
            f"The device is idle for {share} of the traced steps: the host launches work too slowly for it."
        )
    why = _REMEDY[account]
    if account is Account.INSTRUMENT and (view.kernels or stage.wall_s.noise is Noise.TOO_FEW):
        why += f" ({_recorder(view)})"
    of_all = stage.accounts[account].share
    if abs(of_all - typical) <= _ALIKE:
        return f"{percent(of_all)} of a step goes to {account}: {why}."  # as the table of accounts has it
    return f"{share} of a typical step goes to {account}, {percent(of_all)} of the whole time: {why}."


def _in_a_few_steps(account: AccountSummary, stage: StageView, view: RunView) -> str:
    word = account.account
    why = _recorder(view) if word is Account.INSTRUMENT else _NOW_AND_THEN.get(word, _REMEDY[word])
    many = " of all ranks" if stage.ranks > 1 else ""
    steps = f"{account.half_in:,} of {account.seconds.count:,} steps{many}"
    return f"{percent(account.share)} of the time goes to {word}, half of that in {steps}: {why}."


def _recorder(view: RunView) -> str:
    """What the recorder does in some steps and not in others. Which of that took the time is not known."""
    marked = view.recorder.instrumented_steps
    work = ["the first steps find the layers"]
    if marked:
        work.append(f"{plural(marked, 'step')} {'has' if marked == 1 else 'have'} layer marks")
    traced = view.kernels.get("steps") or ()
    if traced:
        work.append(f"{plural(len(traced), 'step')} {'was' if len(traced) == 1 else 'were'} kernel-traced")
    return ", ".join(work)


def _noise(stage: StageView) -> Iterator[str]:
    wall = stage.wall_s
    remedy = _NOISE.get(wall.noise)
    if remedy is None or not wall.mean:
        return
    if wall.noise is Noise.TOO_FEW:
        were = f"{plural(wall.count, 'step')} {'was' if wall.count == 1 else 'were'}"
        yield f"Only {were} timed: {remedy}."
    else:
        half = percent(wall.spread / 2, 0)
        yield f"Step times are {wall.noise} (half of them within ±{half}): {remedy}."
