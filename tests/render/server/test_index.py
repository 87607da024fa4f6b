"""Runs by their path below the folder, and nothing else by any path."""

import os
from pathlib import Path

import pytest
from tests.runs.samples import a_finished_run

from laptime.files import read
from laptime.render.server.index import Index

SECRET = "nobody may read this"


def names(index):
    return [entry.name for entry in index.entries()]


@pytest.fixture
def beside(folder):
    """A run beside the folder, a link to it, a hidden one, and a file within a run."""
    other = a_finished_run(folder.parent / "outside", [SECRET])
    (folder / "link").symlink_to(other, target_is_directory=True)
    a_finished_run(folder / ".hidden", [SECRET])
    (folder / "first" / "notes.txt").write_text(SECRET)
    linked = folder / "linked-file"
    linked.mkdir()
    (linked / "run.json").symlink_to(other / "run.json")
    return folder


def test_runs_are_named_by_their_path_below_the_folder(folder):
    assert names(Index(folder)) == ["broken", "first", "sweep/lr=0.1"]


def test_a_run_that_is_itself_the_folder_has_its_name(folder):
    assert names(Index(folder / "first")) == ["first"]


TRICKS = [
    "../outside", "%2e%2e/outside", "%2e%2e%2foutside", "..%2foutside", "%252e%252e/outside", "..\\outside",
    "link", "linked-file", ".hidden", "first/../../outside", "first/run.json", "first/notes.txt", "first/",
    "/first", "./first", "first%00", "sweep", "sweep%2flr=0.1", "sweep%2Flr=0.1", "sweep//lr=0.1",
    ".", "..", "%2fetc%2fpasswd", "\\first", "%5cfirst", "%", "%zz", "%ff%fe",
]  # fmt: skip


def test_no_path_leads_anywhere_but_to_a_listed_run(raw, beside):
    with raw(beside) as get:
        assert get("/runs/sweep/lr=0.1")[0] == 200
        for path in TRICKS:
            status, text = get(f"/runs/{path}")
            assert status in (400, 404), path
            assert SECRET not in text


def test_a_run_cut_off_its_address_leads_to_the_list(ask):
    for address in ("/runs", "/runs/"):
        assert ask(address).headers["location"] == "/"


@pytest.mark.parametrize("change", [False, True])
def test_a_message_has_names_below_the_folder(folder, monkeypatch, change):
    monkeypatch.chdir(folder.parent)
    index = Index(Path("runs") if change else folder)
    for place in {index.folder, folder}:
        assert index.below(f"{place}/sweep/x/run.json is cut off") == "sweep/x/run.json is cut off"
    assert index.below(f"the run at {folder} has no workload") == "the run at runs has no workload"
    assert (
        index.below("give one that holds runs, or below my-runs/x")
        == "give one that holds runs, or below my-runs/x"
    )
    assert str(folder) not in " ".join(one.reason for one in index.entries())


def test_an_absolute_path_is_no_name(ask, folder):
    assert ask(f"/runs/{folder / 'first'}").status_code == 404
    assert Index(folder).find(str(folder / "first")) is None


def test_a_link_that_takes_the_place_of_a_run_is_not_followed(folder):
    index = Index(folder)
    assert index.find("first") is not None
    other = a_finished_run(folder.parent / "outside", ["x"])
    (folder / "first").rename(folder.parent / "moved")
    (folder / "first").symlink_to(other, target_is_directory=True)
    assert index.find("first") is None
    assert "first" not in names(index)


def test_a_new_run_is_found_at_the_next_request_and_a_deleted_one_is_not(folder):
    index = Index(folder)
    index.entries()
    a_finished_run(folder / "second", ["conv1"])
    assert index.find("second") is not None
    (folder / "first" / "run.json").unlink()
    assert index.find("first") is None
    assert names(index) == ["broken", "second", "sweep/lr=0.1"]


def test_a_damaged_run_has_a_reason_in_one_line(folder):
    entry = Index(folder).find("broken")
    assert entry.run() is None
    assert "restore it from a copy" in entry.reason
    assert "\n" not in entry.reason


@pytest.fixture
def opened(monkeypatch):
    """Every file that is read."""
    found = []
    before = read.open_plain

    def open_plain(path, **options):
        found.append(path)
        return before(path, **options)

    monkeypatch.setattr(read, "open_plain", open_plain)
    return found


def test_a_list_reads_run_json_of_each_once_and_nothing_else(serve, folder, opened, monkeypatch):
    document = (folder / "first" / "run.json").read_text()
    for number in range(1000):
        path = folder / f"many-{number:04d}"
        path.mkdir()
        (path / "run.json").write_text(document)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", None)
    opened.clear()
    client = serve(folder)
    assert "1003 of 1003 runs" in client.get("/").text
    assert sorted(opened) == sorted(folder.rglob("run.json"))
    opened.clear()
    client.get("/?q=many-0001&sort=step_s")
    client.get("/runs/none")
    assert opened == []
    os.utime(folder / "many-0007" / "run.json", ns=(1, 1))
    client.get("/")
    assert opened == [folder / "many-0007" / "run.json"]
