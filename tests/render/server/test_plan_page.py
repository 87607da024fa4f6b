"""The plan page: what a search found, and what a bad question is told."""

import re
import time

import pytest

import laptime
from laptime.render.server import planning


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    """No calibrations, devices and prices of whoever runs the tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("LAPTIME_DEVICES", raising=False)


@pytest.fixture(scope="module")
def networks():
    read = {}

    def reads(batch, precision):
        key = batch, precision
        if key not in read:
            read[key] = laptime.workload("feedforward", batch=batch, precision=precision)
        return read[key]

    return {"<b>small</b>": reads}


@pytest.fixture
def client(serve, folder, networks):
    return serve(folder, networks=networks)


ASKED = {
    "network": "<b>small</b>",
    "cluster": "aws-p5",
    "nodes": "2",
    "global_batch": "64",
    "samples": "100000000",
    "epochs": "10",
}


def test_the_form_says_how_much_is_done_and_is_linked_from_every_page(client):
    text = client.get("/plan").text
    assert f"At most {planning.MOST:,} plans" in text
    assert '<option value="aws-p5"' in text
    assert '<a href="/plan" aria-current="page">Plan</a>' in text
    assert '<a href="/plan">Plan</a>' in client.get("/").text


def test_a_search_is_answered_with_a_table_and_the_frontier(client):
    answer = client.get("/plan", params=ASKED | {"deadline": "1000"})
    assert answer.status_code == 200
    text = answer.text
    assert "<dt>fastest</dt>" in text
    assert "<dt>cheapest</dt>" in text
    assert "cheapest within 1,000" in text
    assert 'id="data-frontier"' in text
    assert text.count("<tr") > 3
    assert "plans considered" in text


def test_names_are_text_and_stay_in_the_form(client):
    text = client.get("/plan", params=ASKED).text
    assert "<b>" not in text
    assert 'value="&lt;b&gt;small&lt;/b&gt;"' in text
    assert 'value="100000000"' in text
    assert re.search(r'<option value="aws-p5" selected>', text)


def test_two_clusters_are_compared(client):
    text = client.get("/plan", params=ASKED | {"other": "rack-4090-10g"}).text
    assert "<td>rack-4090-10g</td>" in text
    assert "<td>aws-p5</td>" in text


def test_a_cluster_without_a_price_has_a_fastest_plan_and_no_frontier(client):
    text = client.get("/plan", params=ASKED | {"cluster": "dgx-h100", "deadline": "1"}).text
    assert "<dt>fastest</dt>" in text
    assert "<dt>cheapest</dt>" not in text
    assert "no price" in text
    assert 'id="data-frontier"' not in text


def test_a_deadline_that_none_keeps_says_what_the_fastest_takes(client):
    text = client.get("/plan", params=ASKED | {"deadline": "0.0001"}).text
    assert "<dd>none</dd>" in text
    assert "at the latest" in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"network": ""}, "give a network and a cluster"),
        ({"network": "other"}, "no network is called"),
        ({"network": "x" * 5000}, "no network is called"),
        ({"cluster": ""}, "give a network and a cluster"),
        ({"cluster": "/etc/passwd.toml"}, "no cluster is called"),
        ({"cluster": "../secret.toml"}, "no cluster is called"),
        ({"cluster": "aws-p6"}, "did you mean"),
        ({"nodes": "0"}, "nodes is"),
        ({"nodes": "99999999999"}, "nodes is"),
        ({"global_batch": "-1"}, "global_batch is"),
        ({"global_batch": "1e3"}, "global_batch is"),
        ({"global_batch": "٣"}, "global_batch is"),
        ({"samples": "many\nlines"}, "samples is"),
        ({"global_batch": "65537"}, "no plan divides"),
        ({"samples": "8"}, "larger than an epoch"),
        ({"samples": "1000000000000", "epochs": "1000000"}, "years of one"),
        ({"epochs": "9" * 4000}, "epochs is"),
        ({"deadline": "nan"}, "deadline is"),
        ({"deadline": "-inf"}, "deadline is"),
        ({"deadline": "0"}, "deadline is"),
        ({"precision": "fp3"}, "precision is"),
        ({"global_bacth": "3"}, "did you mean global_batch?"),
    ],
)
def test_a_bad_question_is_told_in_one_line(client, given, said):
    answer = client.get("/plan", params=ASKED | given)
    assert answer.status_code == 400
    [reason] = re.findall(r'<p class="warning" role="alert">(.*?)</p>', answer.text, re.DOTALL)
    assert said in reason
    assert "\n" not in reason
    assert len(reason) < 400


def test_without_torch_it_says_so(serve, folder):
    answer = serve(folder).get("/plan", params=ASKED)
    assert answer.status_code == 400
    assert "without torch" in answer.text


def test_the_same_question_is_searched_once(client, monkeypatch):
    searched = []
    search = planning.search
    monkeypatch.setattr(planning, "search", lambda *a, **b: searched.append(1) or search(*a, **b))
    for _ in range(3):
        assert client.get("/plan", params=ASKED).status_code == 200
    assert len(searched) == 1


@pytest.mark.parametrize("batch", ["1048576", "720720", "65536"])
def test_no_question_takes_long_however_large_it_is(client, batch):
    began = time.perf_counter()
    asked = ASKED | {"cluster": "meta-24k", "nodes": "4096", "global_batch": batch}
    assert client.get("/plan", params=asked).status_code in (200, 400)
    assert time.perf_counter() - began < 60
