import gzip

import pytest
from tests.runs.importers.traces import a_gpu_step, save
from tests.runs.samples import a_finished_run

from laptime.errors import DataError, LaptimeError, RunExists
from laptime.runs import importers
from laptime.runs.importers import collect


def write(path, content):
    path.write_bytes(content)
    return path


WHOLE = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 2}'
FILES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
    "truncated": (WHOLE + b', {"ph": "X", "na', "cut off or altered"),
    "without its end": (WHOLE, "cut off or altered"),
    "not a trace": (b'{"a": [1, 2]', r"no profiler trace: .*--pattern"),
    "no events": (b'{"traceEvents": []}', "holds no operators"),
    "garbage after gzip's magic": (b"\x1f\x8bgarbage and more garbage", "cut off or altered"),
    "half a gzip": (gzip.compress(WHOLE * 1000)[:60], "cut off or altered"),
    "prose": (
        b"Call me Ishmael. Some years ago, never mind how long.\n",
        "neither a profiler trace nor a log",
    ),
    "binary": (bytes(range(256)) * 20, "neither a profiler trace nor a log"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(200), "neither a profiler trace nor a log"),
    "a timeline without operations": (
        b'{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, '
        b'"args": {"name": "/device:CPU:0 Compute"}}]}',
        "holds no operations",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_cannot_be_collected_is_refused_in_one_line(tmp_path, what):
    content, said = FILES[what]
    with pytest.raises(DataError, match=said) as caught:
        collect(write(tmp_path / "given", content), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        collect(tmp_path / "nothing", tmp_path / "run")


def test_a_folder_without_traces_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no \.json"):
        collect(tmp_path, tmp_path / "run")


def test_a_run_is_not_collected_again(tmp_path):
    with pytest.raises(DataError, match="is a run already"):
        collect(a_finished_run(tmp_path / "one", ["fc"]), tmp_path / "run")


def test_a_folder_of_two_kinds_is_refused(tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    save(folder / "a.json", a_gpu_step())
    write(folder / "b.json", b'{"step": 1, "loss": 2}\n')
    with pytest.raises(DataError, match="mixes formats"):
        collect(folder, tmp_path / "run")


def test_nothing_is_overwritten(tmp_path):
    path = save(tmp_path / "t.json", a_gpu_step())
    collect(path, tmp_path / "run")
    with pytest.raises(RunExists):
        collect(path, tmp_path / "run")


@pytest.mark.parametrize("events", [[1, "a", None], [{"ph": "X"}], [{"ph": "X", "cat": "cpu_op", "ts": "x"}]])
def test_odd_events_are_no_traceback(tmp_path, events):
    with pytest.raises(LaptimeError):
        collect(save(tmp_path / "t.json", events), tmp_path / "run")


@pytest.mark.parametrize("value", [None, "x", [], {}, True, float("nan"), 1e18, -5])
@pytest.mark.parametrize("place", ["ts", "dur", "tid", "pid", "args", "name", "cat"])
def test_an_event_with_an_odd_value_stops_nothing(tmp_path, place, value):
    events = a_gpu_step()
    for event in events[2::3]:
        event[place] = value
    about = {"distributedInfo": {"rank": value, "backend": value}, "deviceProperties": [value]}
    run = collect(save(tmp_path / "t.json", events, **about), tmp_path / "run")
    assert len(run.steps) == 1


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        ("MOST_ENTRIES", 10, "more than 10 files and folders; give a folder with fewer"),
        ("MOST_FILES", 4, "more than 4 traces; give a folder with fewer"),
        ("MOST_BYTES", 1000, r"more than 0\.0 GB of traces; give a folder with fewer"),
        ("MOST_S", -1, "took more than -1 s, after 0 of 5 files; give fewer of them"),
    ],
)
def test_a_folder_that_is_too_much_is_refused_in_one_line(tmp_path, monkeypatch, limit, value, said):
    (tmp_path / "traces" / "deeper").mkdir(parents=True)
    for number in range(5):
        save(tmp_path / "traces" / f"{number}.json", a_gpu_step())
        (tmp_path / "traces" / f"{number}.txt").write_text("beside it")
    with monkeypatch.context() as patched:
        patched.setattr(importers, limit, value)
        with pytest.raises(DataError, match=said):
            collect(tmp_path / "traces", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert len(collect(tmp_path / "traces", tmp_path / "run").steps) == 5
