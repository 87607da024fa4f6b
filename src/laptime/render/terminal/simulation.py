"""Simulations in a terminal: the largest loss first; then one in words and tables, or several in a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from laptime.estimate.choose_device import money
from laptime.files.text import one_line
from laptime.render.terminal import bullets, paragraph
from laptime.render.terminal.prediction import explanation_lines
from laptime.render.terminal.table import table_lines
from laptime.simulate.remedies import largest_loss
from laptime.simulate.search import Search
from laptime.simulate.training import Simulation
from laptime.views import simulation as tables
from laptime.views.format import duration, long_duration, percent, plural
from laptime.views.plan_search import search_table, search_words
from laptime.views.simulation import SimulationView

_GIB = 2.0**30


def simulation_lines(view: SimulationView, width: int, *, every: bool = False) -> Iterator[Text]:
    """The largest loss and what to do; the numbers; where the time goes."""
    if len(view.simulations) > 1:
        yield from _several(view, width)
    else:
        yield from _one(view, width, every=every)
    if view.explanation is not None:
        yield Text()
        sums = tables.span_sums(tables.slowest_rank(view.first))
        yield from table_lines(tables.spans_table(sums), width)
        yield from explanation_lines(view.explanation, width)
    if view.run is not None:
        yield Text()
        yield from paragraph(f"The steps are in {one_line(view.run)}: laptime show, report, export.", width)


def _several(view: SimulationView, width: int) -> Iterator[Text]:
    first = view.first
    yield from paragraph(f"{one_line(first.network)} in {one_line(first.precision)}, simulated", width)
    yield Text()
    yield from table_lines(tables.simulations_table(view), width)
    fastest, cheapest = view.best()
    made = view.simulations[fastest]
    words = [f"fastest: {_name(view, fastest)}, {tables.pace(made.samples_per_s)} samples/s"]
    if made.fits is False:
        words.append("none fits; memory is what the rank needs that needs most")
    if cheapest is not None and cheapest != fastest:
        dollars = tables.per_sample(view.simulations[cheapest]) or 0.0
        words.append(f"cheapest: {_name(view, cheapest)}, {money(dollars * 1e6)} a million samples")
    loss = largest_loss(made)
    words.append(f"of the fastest: {tables.loss_sentence(made, loss)}")
    yield Text()
    yield from bullets(map(one_line, words), width, "  - ")


def _name(view: SimulationView, place: int) -> str:
    made = view.simulations[place]
    several = len({each.cluster.name for each in view.simulations}) > 1
    return f"{tables.plan_text(made.plan)} on {made.cluster.name}" if several else tables.plan_text(made.plan)


def _one(view: SimulationView, width: int, *, every: bool) -> Iterator[Text]:
    made = view.first
    where = f"{plural(made.plan.workers, 'worker')} on {plural(made.nodes, 'node')} of {made.cluster.name}"
    title = f"{made.network} in {made.precision}, {made.plan.describe()}: {where}, simulated"
    yield from paragraph(one_line(title), width)
    yield Text()
    loss = view.diagnosis.loss if view.diagnosis else largest_loss(made)
    yield from paragraph(one_line(tables.loss_sentence(made, loss, view.diagnosis)), width, style="bold")
    yield Text()
    yield from bullets(map(one_line, _words(view)), width, "  - ")
    for table in (tables.stages_table(made, every=every), tables.exchanges_table(made)):
        if table:
            yield Text()
            yield from table_lines(table, width)


def _words(view: SimulationView) -> Iterator[str]:
    made = view.first
    low, high = (duration(end) for end in made.interval_s)
    yield f"a step takes {duration(made.step_s)} ({low} to {high} in nine of ten)"
    batch = f"{made.global_batch:,} samples a step, {made.batch:,} for each replica"
    yield f"{tables.pace(made.samples_per_s)} samples/s: {batch}"
    each = made.flops / made.step_s / made.plan.workers
    yield f"{each / 1e12:.3g} TFLOP/s a device, {percent(made.utilization, 0)} of its peak (MFU)"
    if made.plan.workers > 1:
        yield f"efficiency {percent(view.efficiency(0), 0)} of as many single devices"
    if made.waiting_s > 0.001 * made.step_s:
        share = percent(made.waiting_s / made.step_s)
        yield f"of each step {share} is waiting for the slowest rank ({duration(made.waiting_s)})"
    if made.exchanges is not None:
        ages = made.exchanges
        yield (
            f"staleness {ages.mean_staleness:.2g} updates on average, nine in ten at most "
            f"{ages.staleness_percentile(90):.0f}"
        )
    yield _memory(made)
    yield from _training(made)
    yield from made.notes


def _memory(made: Simulation) -> str:
    memory, room = made.memory, made.device_memory_bytes
    parts = {
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        "optimizer": memory.state,
        "activations": memory.activations,
        "gathered parameters": memory.gathered,
    }
    told = ", ".join(f"{name} {size / _GIB:,.1f}" for name, size in parts.items() if size >= 0.05 * _GIB)
    stage = f" (stage {memory.stage})" if made.plan.stages > 1 else ""
    needs = f"memory: {memory.reserved / _GIB:,.1f} GiB{stage}"
    has = "" if room is None else f" of {room / _GIB:,.0f}"
    fits = {True: "fits", False: "does not fit", None: "the device's memory is not known"}[made.fits]
    return f"{needs}{has}, {fits}" + (f"; {told}" if told else "")


def _training(made: Simulation) -> Iterator[str]:
    hourly = made.dollars_per_hour
    if made.training_s is None:
        if hourly is not None:
            yield f"{money(hourly)} an hour"
        return
    whole = f"training: {plural(made.steps or 0, 'step')}, {long_duration(made.training_s)}"
    if made.dollars is not None:
        whole += f", {money(made.dollars)}"
    yield whole
    faults = made.faults
    if faults.failures:
        lost = long_duration(faults.lost_s + faults.restart_s)
        yield f"{plural(faults.failures, 'failure')} cost {lost} of it, in this draw"
    elif made.cluster.node_hours_between_failures is None:
        yield f"failures: {made.cluster.name} says nothing of them, so there are none"
    if faults.checkpoint_s >= 1:
        yield f"checkpoints take {long_duration(faults.checkpoint_s)} of it"


def search_lines(found: Search, width: int, *, every: bool = False) -> Iterator[Text]:
    """The plans that were looked for, beside others; by the unfavourable end of their intervals."""
    first = found.fastest
    about = f"{first.network} in {first.precision}, simulated: {first.global_batch:,} samples an update"
    if first.samples is not None:
        about += f", {plural(first.epochs or 1, 'epoch')} of {first.samples:,} samples"
    yield from paragraph(one_line(about), width)
    yield Text()
    yield from bullets(map(one_line, search_words(found)), width, "  - ")
    yield Text()
    yield from table_lines(search_table(found, every=every), width)
