"""A run's page, while the run goes on and after; and several runs side by side."""

import asyncio
import json
import shutil
from threading import Event

import pytest
import torch
from tests.runs.samples import a_finished_run, add_steps, start
from tests.views.comparisons import a_run
from tests.views.samples import a_rich_run
from tests.views.test_terminal import shown

import laptime
from laptime.render.html.run_page import run_page
from laptime.render.server.pages import Workers
from laptime.render.server.predicting import Predicting
from laptime.runs import load
from laptime.views.run_document import content


def test_a_run_has_the_sections_of_its_report(ask):
    page = ask("/runs/first")
    assert page.status_code == 200
    for name in ("books", "training", "layers", "environment"):
        assert f'<section id="{name}"' in page.text
    assert "conv1" in page.text
    assert '<a href="/">' in page.text
    assert "live.js" not in page.text


def test_whoever_holds_a_page_is_told_that_it_has_not_changed(ask):
    page = ask("/runs/first")
    again = ask("/runs/first", headers={"if-none-match": f'"x", W/{page.headers["etag"]}'})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["etag"] == page.headers["etag"]


def test_a_run_that_grows_changes_its_page(serve, growing, tmp_path):
    client = serve(tmp_path / "runs")
    add_steps(growing, range(5))
    growing.flush()
    page = client.get("/runs/growing")
    assert "live.js" in page.text
    assert page.headers["etag"].strip('"') in page.text
    assert "<dd>5</dd>" in page.text
    held = {"if-none-match": page.headers["etag"]}
    assert client.get("/runs/growing", headers=held).status_code == 304
    add_steps(growing, range(5, 9))
    growing.flush()
    page = client.get("/runs/growing", headers=held)
    assert page.status_code == 200
    assert "<dd>9</dd>" in page.text
    growing.close("finished", {})
    page = client.get("/runs/growing", headers={"if-none-match": page.headers["etag"]})
    assert page.status_code == 200
    assert "live.js" not in page.text


def test_a_run_whose_process_died_is_interrupted_though_no_file_changed(
    serve, growing, tmp_path, monkeypatch
):
    client = serve(tmp_path / "runs")
    add_steps(growing, range(5))
    growing.flush()
    held = {"if-none-match": client.get("/runs/growing").headers["etag"]}
    monkeypatch.setattr("laptime.runs.run.is_alive", lambda heartbeat: False)
    page = client.get("/runs/growing", headers=held)
    assert page.status_code == 200
    assert "interrupted" in page.text
    assert "live.js" not in page.text


def test_a_failed_run_says_why_once(serve, tmp_path):
    model = torch.nn.Linear(2, 2)

    def train():
        with laptime.record(model, out=tmp_path / "runs" / "r") as recording:
            for number in recording.steps(range(3)):
                model(torch.ones(1, 2))
                1 / (1 - number)

    with pytest.raises(ZeroDivisionError):
        train()
    page = serve(tmp_path / "runs").get("/runs/r").text
    assert "the run failed (the loop ended by ZeroDivisionError): these are the steps before that" in page
    assert page.count("the loop ended by") == 1


def test_a_run_without_a_step_has_a_page(serve, growing, tmp_path):
    page = serve(tmp_path / "runs").get("/runs/growing")
    assert page.status_code == 200
    assert "No step was recorded" in page.text


def test_a_damaged_run_is_told_in_one_line(ask, folder):
    page = ask("/runs/broken")
    assert page.status_code == 500
    assert "restore it from a copy" in page.text
    assert "Traceback" not in page.text
    part = next((folder / "first" / "steps").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:100])
    page = ask("/runs/first")
    assert page.status_code == 500
    assert "is damaged" in page.text
    assert "Traceback" not in page.text


def test_a_mistake_of_ours_shows_no_traceback(serve, folder, monkeypatch):
    def fails(*_, **__):
        raise ValueError("<b>inside</b>")

    monkeypatch.setattr("laptime.render.html.run_page.run_page", fails)
    page = serve(folder, raise_server_exceptions=False).get("/runs/first")
    assert page.status_code == 200  # its head had been sent
    assert "ValueError" in page.text
    assert "inside" not in page.text
    assert page.headers["content-security-policy"]


def test_ten_tabs_cost_one_page_also_while_it_is_made():
    made, begun, go_on = [], Event(), Event()

    def make():
        made.append(1)
        begun.set()
        go_on.wait(20)
        return b"page"

    async def ask():
        workers = Workers(4)
        first = asyncio.create_task(workers.once("state", make))
        await asyncio.to_thread(begun.wait, 20)
        others = [asyncio.create_task(workers.once("state", make)) for _ in range(9)]
        await asyncio.sleep(0)
        go_on.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(ask()) == [b"page"] * 10
    assert made == [1]


def test_only_the_last_pages_are_kept_and_a_failed_one_is_made_again():
    async def ask():
        workers = Workers(1, kept=2)
        for state in "abc":
            await workers.once(state, state.encode)
        assert not workers.has("a")
        assert await workers.once("a", lambda: b"anew") == b"anew"
        assert await workers.once("c", lambda: b"anew") == b"c"
        with pytest.raises(ZeroDivisionError):
            await workers.once("d", lambda: bytes(1 // 0))
        assert not workers.has("d")
        assert await workers.once("d", lambda: b"d") == b"d"

    asyncio.run(ask())


@pytest.mark.parametrize("address", ["/runs/first", "/compare?run=first&run=sweep/lr%3D0.1"])
def test_a_page_is_the_same_plain_packed_and_from_the_cache(serve, folder, address):
    client = serve(folder)
    plain = client.get(address, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for asked in (client, client, serve(folder)):  # kept, kept, and made while it is sent
        packed = asked.get(address)
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.text == plain.text


def test_the_newest_pages_are_made_before_anyone_asks(serve, folder):
    drawn = Event()

    def draws(run, *, title):
        drawn.set()
        return run_page(run, title=title)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("laptime.render.html.run_page.run_page", draws)
        with serve(folder) as client:  # which starts the application
            assert drawn.wait(20)
            assert client.get("/runs/first").status_code == 200


def test_styles_and_scripts_are_kept_for_good_under_their_hash(ask):
    address = ask("/").text.split('<script src="')[1].split('"')[0]
    script = ask(address)
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]
    assert ask(address, headers={"accept-encoding": "identity"}).content == script.content
    folder, _, name = address.rpartition("/")
    for other in (
        f"{folder[:-1]}/{name}",
        f"{folder}/app.py",
        "/static/page.js",
        "/static/../app.py",
        "/static/",
    ):
        assert ask(other).status_code == 404


def test_runs_are_compared_and_the_first_is_the_baseline(serve, tmp_path):
    for name in ("a", "b"):
        a_rich_run(tmp_path / "runs" / name)
    page = serve(tmp_path / "runs").get("/compare?run=b&run=a&run=b")
    assert page.status_code == 200
    assert page.text.index('href="/runs/b"') < page.text.index('href="/runs/a"')
    tag = {"if-none-match": page.headers["etag"]}
    assert serve(tmp_path / "runs").get("/compare?run=b&run=a", headers=tag).status_code == 304
    assert serve(tmp_path / "runs").get("/compare?run=a&run=b", headers=tag).status_code == 200


def test_repetitions_are_compared_as_groups(serve, tmp_path):
    names = [f"{side}/rep-{number}" for side in ("base", "new") for number in (1, 2)]
    for number, name in enumerate(names):
        a_run(tmp_path / "runs" / name, seed=number)
    page = serve(tmp_path / "runs").get("/compare", params={"run": names})
    assert "<h1>new against base" in page.text
    assert "2 runs against 2: the intervals are over runs" in page.text
    assert "<td>faster" not in page.text
    assert "<td>slower" not in page.text


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("", 400, "needs two runs"),
        ("?run=first", 400, "needs two runs"),
        ("?run=first&run=first", 400, "needs two runs"),
        ("?run=first&run=../x", 404, "No run is called ../x"),
        ("?run=first&run=<script>", 404, "No run is called &lt;script&gt;"),
        ("?run=first&run=broken", 500, "restore it from a copy"),
    ],
)
def test_what_cannot_be_compared_says_what_to_do(ask, query, status, said):
    page = ask(f"/compare{query}")
    assert page.status_code == status
    assert said in page.text


def test_a_comparison_has_an_end(ask):
    page = ask("/compare", params={"run": [str(number) for number in range(51)]})
    assert page.status_code == 400
    assert "50 runs at most" in page.text


ODD = [
    {
        "environment": {"device": "AMD", "torch": [2], "threads": "two"},
        "summary": {"steps": {"train": "x"}, "named_share": "all", "notes": "none", "kernels": "some",
                    "overhead": {"ratio": 1.1, "how": "measured"}, "communication": [1], "workload": 3},
    },
    {
        "environment": {"device": {"name": 3, "type": ["cuda"], "memory_bytes": "80"}},
        "summary": {"overhead": {"ratio": 1, "low": 1, "high": 1, "how": "measured",
                                 "instrumented_steps": None, "bare_steps": "3"},
                    "kernels": {"steps": 3, "disturbed": ["x", 10**30], "reconciliation": {},
                                "detach": {"clean": 0}},
                    "communication": {"0": {"seconds": 1, "bytes": "x"}}, "step_s": {"median": 10**400}},
    },
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_what_run_json_says_in_an_odd_form_is_passed_over(serve, folder, odd):
    path = folder / "first" / "run.json"
    document = json.loads(path.read_text())
    for part, values in odd.items():
        document[part] |= values
    path.write_text(json.dumps(document))
    client = serve(folder)
    for address in ("/", "/runs/first", "/compare?run=first&run=sweep/lr%3D0.1", "/predict"):
        page = client.get(address)
        assert page.status_code == 200, address
        assert "laptime itself failed" not in page.text
    assert client.get("/api/results?run=first").json()["first"]["steps"] == "8"
    assert "no workload" in client.get("/api/predict?run=first").json()["error"]
    assert "conv1" in shown(folder / "first")


def test_a_mistake_of_ours_is_told_to_a_program_as_json(ask, monkeypatch):
    def fails(*_, **__):
        raise ValueError("inside")

    monkeypatch.setattr(Predicting, "answer", fails)
    answer = ask("/api/predict?run=first")
    assert answer.status_code == 500
    assert "ValueError" in answer.json()["error"]


def test_steps_that_are_gone_were_recorded_all_the_same(folder):
    shutil.rmtree(folder / "first" / "steps")
    document = json.loads((folder / "first" / "run.json").read_text())
    document["summary"]["steps"] = {"train": 8}
    (folder / "first" / "run.json").write_text(json.dumps(document))
    found = content(load(folder / "first"))
    assert found["look_first"] == []
    assert found["notes"] == ["8 steps were recorded, but the run's `steps` folder is gone"]


def test_layers_of_any_name_stay_text_in_a_run(serve, tmp_path):
    name = "</script><script>alert(1)</script>"
    a_finished_run(tmp_path / "runs" / "x", [name, "<img src=x>"])
    page = serve(tmp_path / "runs").get("/runs/x")
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "<img" not in page.text


def test_a_run_of_a_writer_that_resumed_says_which_steps_were_taken_again(serve, tmp_path):
    writer = start(tmp_path / "runs" / "r")
    add_steps(writer, range(4))
    add_steps(writer, range(2, 6), attempt=1)
    writer.close("finished", {})
    assert "taken again after a resume" in serve(tmp_path / "runs").get("/runs/r").text


def test_a_page_that_could_not_be_made_is_made_anew_when_asked_again(ask, monkeypatch):
    from laptime.errors import DamagedRun
    from laptime.render.html import run_page as drawing

    def fails(*_, **__):
        raise DamagedRun("it changes faster than it can be read; try again")

    with monkeypatch.context() as patched:
        patched.setattr(drawing, "run_page", fails)
        failed = ask("/runs/first")
    assert "try again" in failed.text
    again = ask("/runs/first", headers={"If-None-Match": failed.headers["etag"]})
    assert again.status_code == 200
    assert "Where a step goes" in again.text


def test_the_head_of_a_page_is_sent_before_the_rest_is_made(ask):
    page = ask("/runs/first").text
    assert page.count("<!doctype html>") == 1
    assert page.index('id="plotly"') < page.index("<body>") < page.index("Where a step goes")
    assert page.rstrip().endswith("</html>")
