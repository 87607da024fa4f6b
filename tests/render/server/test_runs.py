"""The list of runs, and what a search finds in it."""

import html
import json
import re

import pytest
from tests.runs.samples import HOSTILE, add_steps, start

from laptime.render.server.listing import ListRequest, network_of

SUMMARY = {"steps": {"train": 8}, "step_s": {"median": 0.25}, "wall_s": 90.0}


def listed(page):
    return [
        html.unescape(name) for name in re.findall(r'<a href="/runs/[^"]*">(.*?)</a>', page.text, re.DOTALL)
    ]


def a_run(folder, name, network="resnet18", device="NVIDIA H200", summary=None, **config):
    writer = start(folder / name, network=network, **config)
    writer.update(environment={"device": {"name": device}})
    writer.close("finished", SUMMARY if summary is None else summary)


@pytest.fixture
def sweep(tmp_path):
    runs = tmp_path / "runs"
    a_run(runs, "a", batch=32, summary={"step_s": {"median": 0.5}, "steps": {"train": 3}})
    a_run(runs, "b", network="vgg11", train={"lr": 0.125}, summary={"step_s": {"median": 0.1}})
    a_run(runs, "c", device="NVIDIA L4", summary={})
    return runs


def test_the_newest_run_comes_first_and_every_one_is_linked(ask):
    page = ask("/")
    assert sorted(listed(page)) == ["broken", "first", "sweep/lr=0.1"]
    assert listed(page)[-1] == "broken"  # which does not say when it began
    assert 'href="/runs/sweep/lr%3D0.1"' in page.text
    assert ask("/runs/sweep/lr%3D0.1").status_code == 200


def test_a_damaged_run_is_listed_with_its_reason(ask):
    assert "restore it from a copy" in ask("/").text


def test_numbers_come_from_the_summary(serve, tmp_path):
    a_run(tmp_path / "runs", "one")
    text = serve(tmp_path / "runs").get("/").text
    for cell in (">8<", ">250<", ">1.50 min<", ">resnet18<", ">NVIDIA H200<"):
        assert cell in text


def test_a_simulated_run_is_listed_as_such(serve, tmp_path):
    writer = start(tmp_path / "runs" / "one", network="resnet18")
    writer.update(environment={"simulated": True, "device": {"name": "h200"}})
    writer.close("finished", SUMMARY)
    assert '<span class="status simulated">simulated</span>' in serve(tmp_path / "runs").get("/").text


def test_a_summary_of_anything_at_all_is_listed(serve, tmp_path):
    odd = [{"steps": "many", "step_s": [1], "wall_s": "long"}, {"steps": {"train": None}, "step_s": None}]
    odd += [
        {"steps": True, "step_s": {"median": "x"}, "workload": 3, "wall_s": -1},
        {"step_s": {"median": 1e308}},
    ]
    for number, summary in enumerate(odd):
        a_run(tmp_path / "runs", f"odd-{number}", summary=summary)
        path = tmp_path / "runs" / f"odd-{number}" / "run.json"
        document = json.loads(path.read_text())
        document["environment"] = {"device": number}
        path.write_text(json.dumps(document).replace("1e+308", "NaN"))
    for number, depth in enumerate((500, 100_000)):
        a_run(tmp_path / "runs", f"deep-{number}", value="here")
        path = tmp_path / "runs" / f"deep-{number}" / "run.json"
        path.write_text(path.read_text().replace('"here"', "[" * depth + "]" * depth))
    page = serve(tmp_path / "runs").get("/")
    assert page.status_code == 200
    assert len(listed(page)) == len(odd) + 2
    assert "nested more than 64 levels deep" in page.text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=vgg", ["b"]),
        ("q=RESNET18+l4", ["c"]),
        ("q=lr%3D0.125", ["b"]),
        ("q=batch=32", ["a"]),
        ("q=finished", ["a", "b", "c"]),
        ("q=nothing+of+that", []),
        ("network=vgg11", ["b"]),
        ("device=NVIDIA+L4", ["c"]),
        ("status=failed", []),
        ("status=finished&network=resnet18&q=batch=32", ["a"]),
    ],
)
def test_a_search_finds_every_word_and_filters_what_is_chosen(serve, sweep, query, found):
    assert listed(serve(sweep).get(f"/?sort=name&{query}")) == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("sort=step_s", ["b", "a", "c"]),
        ("sort=step_s&order=desc", ["a", "b", "c"]),  # what is not known comes last either way
        ("sort=name&order=desc", ["c", "b", "a"]),
        ("sort=network", ["a", "c", "b"]),
    ],
)
def test_a_column_sorts(serve, sweep, query, found):
    assert listed(serve(sweep).get(f"/?{query}")) == found


def test_runs_of_one_minute_are_sorted_by_when_they_began(serve, sweep):
    for name, second in (("a", "20"), ("b", "40.5"), ("c", "40")):
        path = sweep / name / "run.json"
        created = {"created": f"2026-01-01T12:00:{second}+00:00"}
        path.write_text(json.dumps(json.loads(path.read_text()) | created))
    client = serve(sweep)
    assert listed(client.get("/")) == ["b", "c", "a"]
    assert listed(client.get("/?sort=started&order=asc")) == ["a", "c", "b"]


def test_what_a_url_says_wrongly_is_passed_over(serve, sweep):
    page = serve(sweep).get("/?sort=__class__&order=x&page=-1&page=²&nothing=1")
    assert sorted(listed(page)) == ["a", "b", "c"]


@pytest.mark.parametrize("page", ["0", "99", "999999"])
def test_a_page_that_is_none_is_the_nearest(serve, sweep, page):
    assert sorted(listed(serve(sweep).get(f"/?page={page}"))) == ["a", "b", "c"]


def test_pages_of_the_list_keep_the_question():
    wanted = ListRequest.of({"q": "a&b", "sort": "name", "page": "3"})
    assert wanted.address(page=4) == "/?q=a%26b&sort=name&order=asc&page=4"
    assert wanted.turned("name") == "/?q=a%26b&sort=name&order=desc"


def test_an_empty_folder_tells_how_to_record(serve, tmp_path):
    page = serve(tmp_path).get("/")
    assert page.status_code == 200
    assert "laptime demo" in page.text


def test_names_are_text_wherever_they_stand(serve, raw, tmp_path):
    runs = tmp_path / "runs"
    hostile = [name for name in HOSTILE if "/" not in name] + [
        '"><img src=x onerror=alert(1)>',
        "%2e%2e",
        "?q=1#x",
    ]
    for number, name in enumerate(hostile):
        a_run(runs, f"{name}.", network=name, device=name, note=name, number=number)
    client = serve(runs)
    for address in ("/", "/?q=<img", "/?q=%22%3E%3Cscript%3E", "/?status=%22%3E%3Cscript%3E", "/predict"):
        page = client.get(address)
        assert page.status_code == 200
        assert "<img" not in page.text
        assert "<script>" not in page.text
    page = client.get("/")
    links = re.findall(r'<a href="(/runs/[^"]*)">', page.text)
    assert len(links) == len(hostile)
    with raw(runs) as get:
        for link in links:
            assert get(html.unescape(link))[0] == 200, link


def test_the_list_has_a_tag_and_is_not_sent_twice(ask):
    tag = ask("/").headers["etag"]
    assert ask("/", headers={"if-none-match": tag}).status_code == 304
    assert ask("/?q=first", headers={"if-none-match": tag}).status_code == 200


def test_numbers_that_need_steps_are_asked_for_by_row(ask):
    found = ask("/api/results?run=first&run=broken&run=none").json()
    assert found == {
        "first": {"steps": "8", "step": "100", "rate": "640", "loss": "1"},
        "broken": {},
    }


def test_a_run_that_goes_on_has_its_numbers_too(serve, growing, tmp_path):
    add_steps(growing, range(5))
    growing.flush()
    client = serve(tmp_path / "runs")
    assert "data-running" in client.get("/").text
    assert client.get("/api/results?run=growing").json()["growing"]["steps"] == "5"
    add_steps(growing, range(5, 7))
    growing.flush()
    assert client.get("/api/results?run=growing").json()["growing"]["steps"] == "7"


def test_a_network_is_called_what_the_configuration_calls_it():
    assert network_of({"network": {"name": "vgg11"}}) == "vgg11"
    assert network_of({"target": "resnet18"}) == "resnet18"
    assert network_of({"script": "/home/me/train.py"}) == "train.py"
    assert network_of({"collected": {"source": "log"}}) == "from a log"
    assert network_of({"network": 3}) == ""
