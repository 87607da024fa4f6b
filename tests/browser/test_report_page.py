import pytest

from laptime.render.html.page import render
from laptime.render.html.run_page import run_page, write_report
from laptime.runs import load
from laptime.views.palette import MANY
from tests.browser.looking import Looked
from tests.views import page_runs

ALL = [
    *(
        "books",
        "step-time",
        "accounts",
        "spread",
        "ranks-steps",
        "layers",
        "forward-backward",
        "treemap",
        "iterations",
    ),
    *("one-layer", "total-profiled", "percentage-error", "timeline", "memory", "loss", "accuracy"),
    "profiling",
]
OF_ONE_RANK = [name for name in ALL if name != "ranks-steps"]
LIGHT = ("rgb(29, 35, 41)", "rgb(251, 251, 250)")  # letters of a figure, and the page behind it
DARK = ("rgb(230, 233, 236)", "rgb(20, 23, 26)")


@pytest.fixture(scope="package")
def everything(folder):
    return write_report(load(page_runs.everything(folder / "everything")), folder / "everything.html")


@pytest.fixture(scope="package")
def hostile(folder):
    return write_report(load(page_runs.hostile(folder / "hostile")), folder / "hostile.html")


@pytest.fixture(scope="module")
def _rich_page(look_once, everything):
    return look_once(everything)


@pytest.fixture
def rich(_rich_page):
    """The page of a run with everything, opened once for all tests that leave it as they found it."""
    yield _rich_page
    _rich_page.was_quiet()


@pytest.fixture(scope="module")
def _odd_page(look_once, folder):
    return look_once(write_report(load(page_runs.no_steps(folder / "empty")), folder / "empty.html"))


@pytest.fixture
def odd(_odd_page):
    """A page that shows one run after the other."""
    yield _odd_page
    _odd_page.was_quiet()


@pytest.fixture(scope="module")
def _hostile_page(look_once, hostile):
    return look_once(hostile)


@pytest.fixture
def attacked(_hostile_page):
    """The page of a run whose names are attacks, opened once."""
    yield _hostile_page
    _hostile_page.was_quiet()


def colours(seen):
    """Of the letters in the last figure, and of the page."""
    tick = seen.page.eval_on_selector("#plot-profiling .xtick text", "(one) => getComputedStyle(one).fill")
    return tick, seen.page.eval_on_selector("body", "(one) => getComputedStyle(one).backgroundColor")


def hover(seen, mark):
    """Rest the mouse on a mark; what the figure then tells."""
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    seen.page.wait_for_selector(".hoverlayer .hovertext .nums")
    told = seen.texts(".hoverlayer .nums")
    seen.page.mouse.move(0, 0)
    seen.page.wait_for_selector(".hoverlayer .hovertext", state="detached")
    return told


def test_every_figure_of_a_run_is_drawn_with_a_mark_for_every_layer(rich):
    marks = rich.marks()
    assert list(marks) == ALL
    layers = len(page_runs.NESTED)
    assert marks["layers"]["bars"] == 3 * layers
    assert marks["forward-backward"]["bars"] == 2 * layers
    assert marks["treemap"]["slices"] == layers + 3  # the step, blocks, and blocks.0 that two layers share
    assert marks["iterations"]["lines"] == layers
    assert marks["one-layer"]["lines"] == 2 * 3  # ranks by phases
    # The layers' phases, a kernel in each, and what was before and after them.
    assert marks["timeline"]["bars"] == 3 * layers * 2 + 2
    assert marks["books"]["bars"] == 5 + 2
    assert marks["profiling"]["boxes"] == 2
    assert all(one["ticks"] > 3 for name, one in marks.items() if name != "treemap")
    assert colours(rich) == LIGHT


def test_the_one_slow_step_among_many_is_marked_for_both_ranks(rich):
    assert rich.marks()["step-time"]["points"] == 2


def test_a_browser_that_turns_dark_gets_a_dark_page_with_light_letters(rich):
    for scheme, expected in (("dark", DARK), ("light", LIGHT)):
        rich.page.evaluate("() => { delete document.body.dataset.drawn; }")
        rich.page.emulate_media(color_scheme=scheme)
        rich.drawn()
        assert colours(rich) == expected


def test_the_letter_t_changes_page_and_figures_to_dark_and_back(rich):
    assert rich.words("#theme") == "light / dark t"
    for expected in (DARK, LIGHT):
        rich.page.evaluate("() => { delete document.body.dataset.drawn; document.activeElement.blur(); }")
        rich.page.keyboard.press("t")
        rich.drawn()
        assert colours(rich) == expected


def test_tab_reaches_the_skip_link_first_and_a_selector_next_from_the_figure_before_it(rich):
    focused = "() => document.activeElement.dataset.chooses || document.activeElement.className"
    rich.page.keyboard.press("Tab")
    assert rich.page.evaluate(focused) == "skip"
    rich.page.keyboard.press("Enter")
    assert rich.page.evaluate("() => document.activeElement.id") == "main"
    rich.page.locator("#plot-accuracy .modebar-btn").first.focus()
    rich.page.keyboard.press("Shift+Tab")
    assert rich.page.evaluate(focused) == "accuracy"


def test_the_toolbar_of_a_figure_does_not_cover_its_legend(rich):
    apart = """(plots) => plots.map((plot) => {
      const box = (part) => plot.querySelector(part)?.getBoundingClientRect();
      const legend = box(".legend"), bar = box(".modebar");
      return legend && [plot.dataset.figure, bar.height > 0 && bar.bottom <= legend.top];
    }).filter(Boolean)"""
    for size in (
        {"width": 1280, "height": 900},
        {"width": 400, "height": 800},
        {"width": 1280, "height": 900},
    ):
        rich.page.set_viewport_size(size)  # before: it has Plotly draw anew as well
        rich.page.evaluate("() => { delete document.body.dataset.drawn; window.laptime.drawAll(); }")
        rich.drawn()
        told = dict(rich.page.eval_on_selector_all(".plot", apart))
        assert {"step-time", "books", "layers", "loss"} <= set(told)
        assert all(told.values()), told


def test_no_figure_offers_to_send_itself_anywhere(rich):
    offered = set(rich.page.eval_on_selector_all(".modebar-btn", "(all) => all.map((b) => b.dataset.title)"))
    assert offered == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


def test_choosing_a_layer_by_keyboard_draws_its_times(rich):
    select = 'select[data-chooses="one-layer"]'
    assert rich.texts(f"{select} option") == ["blocks.0.mlp", "blocks.0", "blocks.1", "stem", "head"]
    assert _highest(rich, "one-layer") == pytest.approx(3.0)  # backward takes half of 6 ms
    rich.page.focus(select)
    rich.page.keyboard.press("ArrowDown")
    rich.drawn()
    assert _highest(rich, "one-layer") == pytest.approx(2.0)
    rich.page.keyboard.press("ArrowUp")


def test_choosing_a_device_and_phase_draws_a_line_for_every_layer_of_it(rich):
    rich.page.select_option('select[data-chooses="iterations"]', label="cuda:1 rank 1, forward")
    rich.drawn()
    assert rich.marks()["iterations"]["lines"] == len(page_runs.NESTED)
    assert _highest(rich, "iterations") == pytest.approx(1.8)
    rich.page.select_option('select[data-chooses="iterations"]', index=0)


def _highest(seen, figure):
    """The largest value among the lines that are shown of a figure, as Plotly has them."""
    return seen.page.evaluate(
        """(name) => Math.max(...document.getElementById("plot-" + name)._fullData
           .filter((trace) => trace.visible === true && trace.mode.startsWith("lines"))
           .flatMap((trace) => [...trace.y]))""",
        figure,
    )


def test_every_choice_of_every_selector_is_drawn(rich):
    for select in rich.page.query_selector_all("select[data-chooses]"):
        for option in select.query_selector_all("option"):
            select.select_option(option.get_attribute("value"))
            rich.drawn()
        select.select_option("0")


def test_hovering_a_bar_tells_its_layer_and_its_time(rich):
    bar = rich.page.locator("#plot-layers .barlayer .point path").first
    assert hover(rich, bar) == ["blocks.0.mlp: 1.8 ms, the layer 37.5 % of the compute"]


def test_layers_are_told_apart_by_colour_in_the_order_of_their_time(rich):
    drawn = "(all) => all.map((one) => one.style.stroke)"
    strokes = rich.page.eval_on_selector_all("#plot-iterations .scatterlayer path.js-line", drawn)
    expected = [tuple(int(tint[at : at + 2], 16) for at in (1, 3, 5)) for tint in MANY]
    assert strokes == [f"rgb({r}, {g}, {b})" for r, g, b in expected[: len(page_runs.NESTED)]]


def test_a_telephone_does_not_scroll_sideways(look, hostile):
    with look(hostile, width=390) as seen:
        assert seen.overflow() == 0
        assert seen.figures() == OF_ONE_RANK
        wide = "(one) => one.getBoundingClientRect().width"
        assert seen.page.eval_on_selector("#plot-layers .gridlayer", wide) > 150  # beside names of 34 letters
        assert "…error=alert(1)>" in seen.texts("#plot-layers .ytick text")
        low = "(all) => Math.max(...all.map((one) => one.getBoundingClientRect().bottom))"
        frame = "(one) => one.getBoundingClientRect().bottom"
        legend = seen.page.eval_on_selector_all("#plot-iterations .legendtext", low)
        assert legend <= seen.page.eval_on_selector("#plot-iterations", frame)
        assert len(seen.texts("#plot-iterations .legendtext")) == len(page_runs.HOSTILE)


def test_the_report_of_a_training_shows_its_roofline_and_its_memory(look, recorded, folder):
    with look(recorded.report(folder / "recorded.html")) as seen:
        marks = seen.marks()
        assert marks["roofline"]["points"] >= 3
        assert marks["memory"]["lines"] == 1
        assert marks["layers"]["bars"] >= 2 * 3


def test_hostile_names_make_no_element_and_no_script(attacked):
    page = attacked.page
    assert page.locator("main img, main b, main i, .plot image").count() == 0
    assert page.locator("script").count() == 2 + len(OF_ONE_RANK)  # Plotly's, ours, and data
    assert page.locator("[onmouseover], [onerror], a[href^=javascript]").count() == 0


def test_hostile_names_are_seen_letter_by_letter(attacked):
    assert "<img src=x onerror=alert(1)>" in attacked.words("h1")
    names = [name for name in page_runs.HOSTILE if len(name) < 100]
    for where in (
        '[data-part="layers-table"] td:first-child',
        '[data-part="config-table"] td:first-child',
        '[data-part="config-table"] td:last-child',
        'select[data-chooses="one-layer"] option',
        "#plot-layers .ytick text",
        "#plot-forward-backward .xtick text",
        "#plot-iterations .legendtext",
    ):
        assert set(names) <= set(attacked.texts(where)), where
    slices = " ".join(attacked.texts("#plot-treemap .slicetext"))
    assert all(name in slices for name in names)


@pytest.mark.parametrize("name", page_runs.HOSTILE[:7])
def test_a_hostile_name_is_text_in_the_hover_label_too(attacked, name):
    largest_first = page_runs.HOSTILE[::-1]
    phase = attacked.page.locator("#plot-layers .barlayer .trace").nth(1)
    (told,) = hover(attacked, phase.locator(".point path").nth(largest_first.index(name)))
    assert told.startswith(f"{name}: ")


def test_a_name_of_300_letters_leaves_room_for_the_figure(attacked):
    for figure in ("iterations", "layers", "one-layer"):
        frame = "(one) => one.getBoundingClientRect().width"
        assert attacked.page.eval_on_selector(f"#plot-{figure} .gridlayer", frame) > 500, figure
    assert attacked.overflow() == 0


@pytest.mark.parametrize("make", page_runs.ODD, ids=lambda make: make.__name__)
def test_an_odd_run_is_drawn_and_says_what_is_odd(odd, folder, make):
    page = run_page(load(make(folder / make.__name__)))
    odd.show(render("sections.html", page=page))
    assert odd.figures() == [figure.name for section in page.sections for figure in section.figures]
    assert page_runs.ODD[make] in odd.words("main")
    assert odd.overflow() == 0


def test_a_notebook_shows_a_run_without_any_script(browser, recorded, folder):
    fragment = recorded._repr_html_()
    assert "<script" not in fragment
    context = browser.new_context(java_script_enabled=False)
    seen = Looked(context.new_page())
    (folder / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8>{fragment}")
    seen.open(folder / "notebook.html", drawn=False)
    assert "training step" in seen.words()
    assert "wall time" in seen.words("table")
    seen.was_quiet()
    context.close()
