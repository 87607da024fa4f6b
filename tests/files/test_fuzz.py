"""Thousands of spoilt files through every door: a result or one clear line, within 10 s and 1 GiB each."""

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laptime.files.parse import build, parse_json, parse_toml, parse_yaml
from laptime.files.text import one_line, visible
from laptime.model import Layer, Operation
from laptime.model.prediction import Prediction
from laptime.runs.importers.training_log import read_line, read_values, values_of

ROOT = Path(__file__).parents[2]
SEED = "LAPTIME_SEED"


def spoilt(seed, count):
    """What the worker says of so many files."""
    command = [sys.executable, "-m", "tests.files.fuzz_worker", str(seed), str(count)]
    threads = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "ARROW_NUM_THREADS": "1"}
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | threads | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def told(found, seed):
    return f"{len(found['failures'])} failures with seed {seed}:\n" + "\n".join(
        f"{one['door']} {one['number']}:\n{one['failure']}" for one in found["failures"][:10]
    )


@pytest.mark.timeout(600)
def test_two_thousand_spoilt_files_give_a_result_or_one_line():
    found = spoilt(0, 2000)
    assert sum(found["done"].values()) >= 2000
    assert not found["failures"], told(found, 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_random_search_over_all_doors_finds_nothing(capsys):
    seed = os.environ.get(SEED) or str(random.SystemRandom().randrange(1 << 32))
    with capsys.disabled():
        print(f"\nspoilt files with seed {seed}; {SEED}={seed} repeats it")
    found = spoilt(seed, 20_000)
    assert not found["failures"], told(found, seed)


# -- properties ------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.text() | st.binary())
def test_a_parser_gives_a_document_or_a_value_error(data):
    for parse in (parse_json, parse_toml, parse_yaml):
        given_as = data.encode() if isinstance(data, str) and parse is parse_yaml else data
        with suppress(ValueError):
            parse(given_as)


@given(st.sampled_from([Layer, Operation, Prediction]), st.data())
def test_a_typed_reader_gives_its_class_or_a_value_error(kind, data):
    names = st.sampled_from([*kind.__slots__, "unknown"])
    document = data.draw(st.dictionaries(names, values, max_size=30) | values)
    with suppress(ValueError):
        assert isinstance(build(kind, document), kind)


@given(st.text() | st.from_regex(r"(step|epoch|loss|time|acc)[ =:]*[\d.eE%s/ ]{0,40}"))
def test_a_line_of_a_log_gives_numbers_that_a_table_holds(text):
    lines = [*read_line(text), *read_values(values_of(text) or {})]
    for line in lines:
        assert line.step is None or 0 <= line.step < 2**63
        assert line.epoch is None or 0 <= line.epoch < 2**31
        assert line.seconds is None or 0 <= line.seconds < 1e9


@given(st.text())
def test_shown_text_holds_nothing_that_a_terminal_acts_on(text):
    assert one_line(text).isprintable()
    assert visible(text).replace("\n", "").replace("\t", "").isprintable()
    assert len(visible(text)) == len(text)
