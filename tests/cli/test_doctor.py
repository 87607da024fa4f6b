import json
import sys

import pytest

from laptime.recorder.machine import STEADY_MALLOC, advice, usable_cores

FOUND = {
    "cores": {"usable": 2, "all": 2, "load": 0.0},
    "environment": {"threads": 2},
    "steadiness": {"noise": "steady"},
    "mps": False,
}


def test_doctor_ends_with_a_verdict(laptime):
    done = laptime("doctor")
    assert done.exit_code == 0
    for word in ("torch", "cores", "cpu", "clock", "a mark costs", "lightning", "steadiness"):
        assert word in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Verdict: ready to record on cpu")


def test_doctor_json_is_one_document(laptime):
    found = json.loads(laptime("doctor", "--json").stdout)
    assert found["ready"]
    assert found["clocks"][0]["mark_s"] > 0
    assert found["verdict"].startswith("ready")
    assert set(found["extras"]) == {"lightning", "transformers", "bench"}


def test_doctor_without_torch_says_what_is_missing_and_ends_with_1(laptime, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = laptime("doctor")
    assert done.exit_code == 1
    assert "not ready: torch" in done.stdout


def test_a_verb_that_needs_torch_says_so_in_one_line(laptime, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("laptime.training", "torch."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    done = laptime("profile", "zener4")
    assert done.exit_code == 1
    assert done.stderr.startswith("laptime: torch is not installed")


def test_a_machine_in_good_order_gets_no_advice():
    assert list(advice(FOUND, STEADY_MALLOC)) == []


@pytest.mark.parametrize(
    ("changes", "variables", "said"),
    [
        ({"environment": {"threads": 8}}, {}, "OMP_NUM_THREADS=2"),
        ({"cores": {"usable": 2, "all": 2, "load": 5.0}}, {}, "other processes are busy"),
        ({"steadiness": {"noise": "unreliable"}}, {}, "very different times"),
        ({"mps": True}, {}, "cannot be timed yet"),
        ({}, {"CUDA_LAUNCH_BLOCKING": "1"}, "unset CUDA_LAUNCH_BLOCKING"),
    ],
)
def test_each_trouble_has_its_advice(changes, variables, said):
    (line,) = advice(FOUND | changes, {**STEADY_MALLOC, **variables})
    assert said in line


def test_malloc_advice_names_what_is_not_set(monkeypatch):
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    (line,) = advice(FOUND, {"MALLOC_TRIM_THRESHOLD_": "1"})
    assert line.endswith("export MALLOC_MMAP_THRESHOLD_=268435456")
    assert not list(advice(FOUND, {"LD_PRELOAD": "/usr/lib/libjemalloc.so"}))


def test_usable_cores_are_at_least_one():
    assert usable_cores() >= 1
