import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from tests.views import page_runs

from laptime.render.html.page import prose, script_json, standalone
from laptime.render.html.run_page import notebook, run_page
from laptime.runs import load

SECTIONS = [
    *(
        "first",
        "books",
        "training",
        "ranks",
        "layers",
        "iterations",
        "closure",
        "step",
        "roofline",
        "learning",
    ),
    *("recorder", "environment"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return run_page(load(page_runs.everything(tmp_path_factory.mktemp("page") / "run")))


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    return load(page_runs.hostile(tmp_path_factory.mktemp("page")))


@pytest.fixture(scope="module")
def hostile(hostile_run):
    return Document(standalone(run_page(hostile_run)))


class Document(HTMLParser):
    """What a browser would make of a page: its elements, its scripts and its words."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.words = [], [], [], ""
        self._inside = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *one) for one in attributes]
        self._inside.append(tag)
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" in self._inside:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif "style" not in self._inside:
            self.words += data


def test_a_run_with_everything_has_every_section(page):
    assert [section.name for section in page.sections] == SECTIONS
    assert all(not section.empty for section in page.sections)


def test_no_two_parts_of_a_page_share_a_name(hostile):
    for kind in ("id", "data-part", "data-figure"):
        names = [value for _, key, value in hostile.attributes if key == kind]
        assert len(names) == len(set(names)) > 10


def test_the_tiles_are_what_most_people_come_for(page):
    assert {tile.name: tile.value for tile in page.tiles} == {
        "training step": "40.0 ms",
        "samples a second": "2,587",
        "steps": "40",
        "explained": "100.0 %",
        "top-1 accuracy": "75.0 %",
        "loss": "0.5",
    }


def test_the_table_of_a_step_adds_up_to_its_wall_time(page):
    (books,) = [one for one in page.sections if one.name == "books"]
    rows = [[getattr(cell, "text", cell) for cell in row] for row in books.tables[0].rows]
    assert rows[-1] == ["wall time", "40.000", "49.474", "100.0 %"]
    assert books.tables[0].notes == ["explained 100.0 %"]
    assert sum(float(row[2]) for row in rows[:-1]) == pytest.approx(49.474, abs=0.002)


def test_configuration_and_environment_are_a_line_for_each_value(page):
    (facts,) = [one for one in page.sections if one.name == "environment"]
    tables = {table.name: dict(table.rows) for table in facts.tables}
    assert tables["config"] == {"batch": "64"}
    assert tables["machine"]["device.name"] == "a made-up CPU"


@pytest.mark.parametrize("make", page_runs.ODD, ids=lambda make: make.__name__)
def test_an_odd_run_says_what_is_odd(tmp_path, make):
    text = standalone(run_page(load(make(tmp_path / "run"))))
    assert page_runs.ODD[make] in Document(text).words


def test_a_page_asks_for_nothing_and_runs_only_scripts_that_it_names(hostile):
    addresses = [one for one in hostile.attributes if one[1] in ("src", "href", "action", "data", "srcset")]
    assert all(tag == "a" and value.startswith("#") for tag, _, value in addresses), addresses
    (policy,) = [
        value for tag, key, value in hostile.attributes if key == "content" and "script-src" in value
    ]
    running = [text for attributes, text in hostile.scripts if "type" not in attributes]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    assert re.findall("'sha256-(.*?)'", policy) == hashes
    assert policy.startswith("default-src 'none'; ")


def test_hostile_names_make_no_element_and_no_attribute(hostile):
    assert not {"img", "b", "i"} & set(hostile.tags)
    assert not [one for one in hostile.attributes if one[1].startswith("on")]
    assert len(hostile.scripts) == 2 + 16


def test_hostile_names_are_read_letter_by_letter(hostile):
    assert all(name in hostile.words for name in page_runs.HOSTILE)


def test_the_figures_data_is_json_whatever_the_names(hostile):
    data = [json.loads(text) for attributes, text in hostile.scripts if "type" in attributes]
    chosen = next(one for one in data if one["asks"] == "layer")
    assert sorted(one["name"] for one in chosen["choices"]) == sorted(page_runs.HOSTILE)


def test_json_in_a_script_cannot_end_it_and_holds_no_number_that_is_none():
    text = str(script_json({"</script>": "<!--", "&": "\u2028", "x": float("nan")}))
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == {"</script>": "<!--", "&": "\u2028", "x": None}


def test_backticks_are_code_and_nothing_else_is_markup():
    assert str(prose("run `laptime demo` <b>")) == "run <code>laptime demo</code> &lt;b&gt;"
    assert str(prose("`<img>`")) == "<code>&lt;img&gt;</code>"


def test_a_notebook_gets_numbers_and_books_without_scripts(hostile_run):
    found = Document(notebook(hostile_run))
    assert not {"script", "img", "style", "link", "b"} & set(found.tags)
    assert "<img src=x onerror=alert(1)>" in found.words
    assert "40.000" in found.words


@pytest.mark.parametrize("make", [page_runs.no_steps, page_runs.validation_only, page_runs.of_a_log])
def test_a_notebook_shows_odd_runs_too(tmp_path, make):
    assert "run.report()" in Document(notebook(load(make(tmp_path / "run")))).words
