"""What several ranks do: planted waits, staleness and traffic are found where they were planted."""

import io
import json

import numpy as np
import pytest
from tests.runs.samples import a_step, start

from laptime.model import Stage
from laptime.render import terminal
from laptime.render.html.run_page import run_page
from laptime.render.terminal import run_text
from laptime.runs import load, schema
from laptime.views.figures.ranks import staleness, steps_by_rank, who_waits_for_whom
from laptime.views.findings import look_first
from laptime.views.ranks import ranks_view
from laptime.views.ranks_tables import ranks_tables, sentences
from laptime.views.run_document import content
from laptime.views.run_view import run_view
from laptime.views.step_bins import digest

STEPS = 41  # the first warms up


def waiting(number, rank, seconds, **more):
    """A step of 100 ms of which so many seconds are communication."""
    others = {"backward_s": 0.05, "update_s": 0.01, "host_s": 0.01, "unexplained_s": 0.0}
    return a_step(
        number, rank=rank, communication_s=seconds, forward_s=0.03 - seconds, device="cpu", **others, **more
    )


def a_run(path, rows, summary=None):
    writer = start(path)
    writer.append("steps", schema.steps.table(rows))
    writer.close("finished", summary or {})
    assert writer.problem is None
    return load(path)


def synchronous(path, waits, **more):
    """`waits[rank]`: seconds of communication, or a function of the step's number."""
    rows = [
        waiting(number, rank, wait(number) if callable(wait) else wait)
        for number in range(STEPS)
        for rank, wait in enumerate(waits)
    ]
    return a_run(path, rows, **more)


@pytest.fixture
def straggling(tmp_path):
    """Rank 1 is 10 ms later than rank 2 and 12 ms later than rank 0."""
    return synchronous(tmp_path / "run", [0.014, 0.002, 0.012])


@pytest.fixture
def stale(tmp_path):
    """Rank 0's updates are one update old, those of rank 1 none to four."""
    ages = {0: lambda number: 1.0, 1: lambda number: float(number % 5)}
    rows = [
        waiting(number, rank, 0.001, staleness=age(number))
        for number in range(STEPS)
        for rank, age in ages.items()
    ]
    return a_run(tmp_path / "stale", rows)


def shown(run, width=100, **more):
    text = io.StringIO()
    terminal.print_lines(run_text.run_lines(run_view(run), width, **more), terminal.console(text))
    return text.getvalue()


def section(run, name="ranks"):
    return next((section for section in run_page(run).sections if section.name == name), None)


def test_the_rank_with_the_least_communication_is_the_one_the_others_wait_for(straggling):
    found = ranks_view(straggling, Stage.TRAIN).waiting
    assert found.last_in == (0, STEPS - 1, 0)
    assert found.lost_s == pytest.approx((0, 0.022 * (STEPS - 1), 0))
    assert np.array(found.for_whom_s) == pytest.approx(np.array([[0, 0.012, 0], [0, 0, 0], [0, 0.010, 0]]))


def test_a_step_would_be_shorter_by_the_distance_to_the_next_slowest_rank(straggling):
    slow = ranks_view(straggling, Stage.TRAIN).waiting.straggler
    assert (slow.rank, slow.steps) == (1, STEPS - 1)
    assert slow.shorter_s == pytest.approx(0.010)
    assert (slow.waited_s, slow.waited_share) == (pytest.approx(0.011), pytest.approx(0.11))
    assert (slow.account, slow.longer_s) == ("forward", pytest.approx(0.011))
    (told,) = sentences(ranks_view(straggling, Stage.TRAIN))
    assert told.startswith("Rank 1 is slow: the others wait 11 % of every step for it (11.0 ms).")
    assert "10.0 ms (10 %) shorter" in told


def test_a_straggler_is_the_first_thing_to_look_at(straggling):
    assert look_first(run_view(straggling))[0].startswith("Rank 1 is slow: the others wait 11 %")


def test_a_straggler_that_takes_most_of_a_step_is_named_once(tmp_path):
    others = {"update_s": 0.0, "host_s": 0.0, "unexplained_s": 0.0, "forward_s": 0.0}
    busy_s = (0.01, 0.1, 0.01)
    rows = [
        a_step(number, rank=rank, backward_s=busy, communication_s=0.1 - busy, **others)
        for number in range(STEPS)
        for rank, busy in enumerate(busy_s)
    ]
    told = look_first(run_view(a_run(tmp_path / "run", rows)))
    assert told[0].startswith("Rank 1 is slow: the others wait 90 %")
    assert not any("communication" in sentence for sentence in told)


def test_a_slow_rank_that_nobody_waits_for_is_named_too(tmp_path):
    rows = [waiting(number, rank, 0.001, staleness=1.0) for number in range(STEPS) for rank in (0, 1)]
    others = {"backward_s": 0.0, "update_s": 0.0, "host_s": 0.0, "unexplained_s": 0.0, "staleness": 6.0}
    rows += [a_step(number, rank=2, wall_s=0.3, forward_s=0.3, **others) for number in range(STEPS)]
    run = a_run(tmp_path / "run", rows)
    assert look_first(run_view(run))[0].startswith(
        "Rank 2 is slow: its step takes 300 ms, 3 times the others'"
    )


def test_a_rank_that_was_lost_in_its_warm_up_hides_no_slow_one(tmp_path):
    rows = [waiting(number, rank, 0.001, staleness=1.0) for number in range(STEPS) for rank in (0, 1)]
    others = {"backward_s": 0.0, "update_s": 0.0, "host_s": 0.0, "unexplained_s": 0.0, "staleness": 6.0}
    rows += [a_step(number, rank=2, wall_s=0.3, forward_s=0.3, **others) for number in range(STEPS)]
    rows += [waiting(0, 3, 0.001, staleness=0.0)]
    assert ranks_view(a_run(tmp_path / "run", rows), Stage.TRAIN).slow.rank == 2


def test_ranks_that_come_last_in_turns_are_no_stragglers(tmp_path):
    turns = [lambda n: 0.01 * (n % 2), lambda n: 0.01 * ((n + 1) % 2)]
    found = ranks_view(synchronous(tmp_path / "run", turns), Stage.TRAIN)
    assert found.waiting.last_in == (20, 20)
    assert found.waiting.straggler is None
    assert [*sentences(found)] == [
        "There is no straggler: no rank is waited for in clearly more than its share of the steps."
    ]


def test_a_straggler_that_costs_almost_nothing_is_not_named(tmp_path):
    found = ranks_view(synchronous(tmp_path / "run", [0.0105, 0.010]), Stage.TRAIN)
    assert found.waiting.last_in == (0, STEPS - 1)
    assert found.waiting.straggler is None


def test_ranks_that_never_wait_have_no_matrix(tmp_path):
    found = ranks_view(synchronous(tmp_path / "run", [0.0, 0.0]), Stage.TRAIN)
    assert found.waiting is None
    assert [*sentences(found)] == []


def test_a_step_that_one_rank_did_not_take_tells_nothing_of_waiting(tmp_path):
    rows = [waiting(number, 0, 0.01) for number in range(STEPS)]
    rows += [waiting(number, 1, 0.001) for number in range(STEPS - 10)]
    found = ranks_view(a_run(tmp_path / "run", rows), Stage.TRAIN)
    assert found.waiting.steps == STEPS - 11
    assert [pace.steps for pace in found.paces] == [STEPS - 1, STEPS - 11]


def test_each_rank_has_its_pace(straggling):
    first, second, _ = ranks_view(straggling, Stage.TRAIN).paces
    assert (first.rank, first.device, first.steps) == (0, "cpu", STEPS - 1)
    assert first.step_s == pytest.approx(0.1)
    assert first.samples_per_s == pytest.approx(640)
    assert [first.communication_share, second.communication_share] == pytest.approx([0.14, 0.02])


def test_steps_of_ranks_that_do_not_wait_are_counted_by_rank_and_not_by_number(tmp_path):
    """The first rank validates after every tenth step, so its steps have other numbers."""
    rows = [waiting(number + number // 10 * 5, 0, 0.001, staleness=1.0) for number in range(STEPS)]
    rows += [waiting(number, 1, 0.001, staleness=1.0) for number in range(STEPS)]
    part = run_view(a_run(tmp_path / "run", rows)).main
    assert part.wall_s.count == STEPS - 1
    assert part.samples_per_s == pytest.approx(2 * 640)


def test_staleness_is_told_instead_of_stragglers(stale):
    found = ranks_view(stale, Stage.TRAIN)
    assert found.waiting is None
    one = found.paces[1].staleness
    assert (one.mean, one.largest, sum(one.counts.values())) == (pytest.approx(2.0), 4.0, STEPS - 1)
    assert one.p90 == 4.0
    assert found.paces[0].staleness.counts == {1: STEPS - 1}
    assert [trace["name"] for trace in staleness(found).traces] == ["rank 0", "rank 1"]
    told = "come 1.5 updates of others on average, at most 4."
    assert told in " ".join(shown(stale).split())


KIND = {"kind": "all_reduce", "calls": 2 * STEPS, "bytes": STEPS * 2**20}
TIMES = {"wire_bytes": 1.5 * STEPS * 2**20, "seconds": 0.41, "exposed_s": 0.041}
BUCKET = {"bucket": 0, "calls": STEPS, "bytes": STEPS * 2**19, "seconds": 0.2, "exposed_s": 0.01}


def with_exchanges(run, by_rank):
    for rank, document in by_rank.items():
        (run.path / f"exchanges-r{rank}.json").write_text(json.dumps(document))
    return load(run.path)


def test_what_ranks_exchange_is_told_per_step_with_its_bandwidth(tmp_path):
    one = {"steps": STEPS, "collectives": [KIND | TIMES]}
    two = {"steps": 2 * STEPS, "collectives": [KIND | TIMES], "buckets": [BUCKET | {"layers": ["fc1"]}]}
    run = with_exchanges(synchronous(tmp_path / "run", [0.01, 0.01]), {0: one, 1: two})
    found = ranks_view(run, Stage.TRAIN)
    first, second = found.traffic
    assert (first.bytes, second.bytes) == (pytest.approx(2**20), pytest.approx(2**19))
    assert (first.exposed_s, first.overlapped_s) == (pytest.approx(0.001), pytest.approx(0.009))
    (kind,) = found.collectives
    assert (kind.kind, kind.ranks, kind.calls) == ("all_reduce", 2, pytest.approx(1.5))
    assert kind.bandwidth == pytest.approx(1.5 * STEPS * 2**20 / 0.41)
    assert (kind.exposed_s, kind.overlapped_s) == (pytest.approx(0.00075), pytest.approx(0.00675))
    (bucket,) = found.buckets
    assert (bucket.layers, bucket.bytes) == (("fc1",), pytest.approx(2**18))


def test_collectives_and_the_layers_of_buckets_are_shown_everywhere(tmp_path):
    names = ["conv1", "conv2", "conv3", "conv4", "fc1"]
    buckets = [BUCKET | {"layers": ["fc2"]}, BUCKET | {"bucket": 1, "layers": names}]
    one = {"steps": STEPS, "collectives": [KIND | TIMES], "buckets": buckets}
    run = with_exchanges(synchronous(tmp_path / "run", [0.01, 0.01]), {0: one, 1: one})
    text = shown(run, 140)
    assert "all_reduce" in text
    assert "conv1 to fc1 (5 layers)" in text
    assert {"ranks-collectives", "ranks-buckets"} <= {table.name for table in section(run).tables}
    told = content(run)["ranks"]
    assert told["collectives"][0]["bandwidth"] == pytest.approx(1.5 * STEPS * 2**20 / 0.41)
    assert [bucket["layers"] for bucket in told["buckets"]] == [["fc2"], names]


def test_runs_that_kept_traffic_in_their_summary_still_show_it(tmp_path):
    totals = {"bytes": STEPS * 2**20, "seconds": 0.41, "exposed_s": 0.041, "overlapped_s": 0.369}
    kinds = {"all_reduce": {"calls": 2 * STEPS, "bytes": STEPS * 2**20, "exposed_s": 0.041}}
    summary = {"communication": {"0": totals | {"collectives": kinds}, "1": {}}}
    found = ranks_view(synchronous(tmp_path / "run", [0.01, 0.01], summary=summary), Stage.TRAIN)
    (traffic,) = found.traffic
    assert traffic.bytes == pytest.approx(2**20)
    assert (traffic.exposed_s, traffic.overlapped_s) == (pytest.approx(0.001), pytest.approx(0.009))
    (kind,) = found.collectives
    assert (kind.kind, kind.calls, kind.bytes) == ("all_reduce", 2.0, pytest.approx(2**20))
    assert (kind.wire_bytes, kind.bandwidth) == (None, pytest.approx(STEPS * 2**20 / 0.41))


@pytest.mark.parametrize(
    "told", [3, {"0": 4}, {"0": {"bytes": "many", "collectives": [1]}}, {"0": {"collectives": {"x": 3}}}]
)
def test_traffic_that_is_no_traffic_is_passed_over(tmp_path, told):
    run = synchronous(tmp_path / "run", [0.01, 0.002], summary={"communication": told})
    assert ranks_view(run, Stage.TRAIN).collectives == ()
    run = with_exchanges(run, {0: told})
    assert ranks_view(run, Stage.TRAIN).collectives == ()


def test_a_single_rank_has_no_page_of_ranks(tmp_path):
    run = synchronous(tmp_path / "run", [0.0])
    assert run_view(run).ranks is None
    assert section(run) is None
    assert "Pace of each rank" not in shown(run)
    assert content(run)["ranks"] is None


def test_the_page_and_the_terminal_have_the_same_tables(straggling):
    page = section(straggling)
    assert [figure.name for figure in page.figures] == ["ranks-steps", "ranks-waiting"]
    assert [table.name for table in page.tables] == ["ranks", "ranks-waiting"]
    text = shown(straggling)
    assert "Who waits for whom, in ms a step" in text
    assert "Rank 1 is slow" in text


def test_the_heat_map_has_a_cell_for_each_rank_and_step_and_shows_work_before_waits(straggling):
    figure = steps_by_rank(digest(straggling))
    names = ["work, without waiting", "step time", "communication"]
    assert [choice.name for choice in figure.choices] == names
    assert [trace["z"]["shape"] for trace in figure.traces] == [f"3, {STEPS}"] * 3
    assert who_waits_for_whom(ranks_view(straggling, Stage.TRAIN)).traces[0]["z"]["shape"] == "3, 3"


def test_a_long_run_has_a_few_hundred_columns(tmp_path):
    rows = [waiting(number, rank, 0.001 * rank) for number in range(2000) for rank in range(2)]
    figure = steps_by_rank(digest(a_run(tmp_path / "run", rows)))
    assert figure.traces[0]["z"]["shape"] == "2, 300"


def test_of_many_ranks_a_terminal_shows_those_most_waited_for(tmp_path):
    run = synchronous(tmp_path / "run", [0.02] * 39 + [0.001])
    paces, _ = ranks_tables(ranks_view(run, Stage.TRAIN), 16)
    assert paces.title == "Pace of each rank, the 16 most waited for of 40"
    assert [row[0] for row in paces.rows][-1] == "39"
    assert all(len(line) <= 80 for line in shown(run, 80).splitlines())
    assert len(ranks_tables(ranks_view(run, Stage.TRAIN))[0].rows) == 40


def test_the_document_is_strict_json(stale, straggling):
    for run in (stale, straggling):
        found = json.loads(json.dumps(content(run)["ranks"], allow_nan=False))
        assert [pace["rank"] for pace in found["paces"]] == list(range(len(found["paces"])))


def test_the_bubbles_of_stages_are_told_by_cause_and_count_as_waiting(tmp_path):
    causes = {"bubble_fill_s": 0.0, "bubble_drain_s": 0.01, "bubble_imbalance_s": 0.005}
    none = dict.fromkeys(causes, 0.0)
    rows = []
    for number in range(STEPS):
        rows += [_stage(number, 0, causes), _stage(number, 1, none)]
    run = a_run(tmp_path / "run", rows)
    found = ranks_view(run, Stage.TRAIN)
    assert not run.selected().traced.any()
    assert found.paces[0].bubbles.drain_s == pytest.approx(0.01)
    assert found.paces[0].bubbles.share == pytest.approx(0.15)
    assert found.waiting.straggler.rank == 1
    assert "ranks-bubbles" in [table.name for table in ranks_tables(found)]


def _stage(number, rank, causes):
    idle = sum(causes.values())
    seconds = {"backward_s": 0.05, "update_s": 0.01, "host_s": 0.01, "unexplained_s": 0.0}
    return a_step(number, rank=rank, forward_s=0.03 - idle, idle_s=idle, device="cpu", **seconds, **causes)
