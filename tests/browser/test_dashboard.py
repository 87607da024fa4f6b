import json
import shutil
from urllib.parse import quote

import pytest
from benchmarks.dashboard import serving

from laptime.runs import RunWriter
from tests.views import page_runs

SWEEP = ("sweep/slow", "sweep/quick")
FILLED = 'tr[data-run="sweep/slow"] [data-fill=loss]:not(:empty)'
ANSWERED = "#answer[aria-busy=false]:not(.empty)"


@pytest.fixture(scope="package")
def runs(folder, recorded):
    """A folder of runs: one with everything, hostile ones, two to compare, one that can be predicted."""
    place = folder / "runs"
    page_runs.everything(place / "everything")
    page_runs.hostile(place / "hostile")
    for name, factor in zip(SWEEP, (2, 1), strict=True):
        layers = tuple((layer, path, seconds * factor) for layer, path, seconds in page_runs.NESTED)
        page_runs.write(place / name, layers=layers, config={"batch": 64, "learning_rate": factor / 10})
    shutil.copytree(recorded.path, place / "recorded")
    (place / "damaged").mkdir()
    (place / "damaged" / "run.json").write_text("{")
    return place


@pytest.fixture(scope="package")
def served(browser, runs):
    """The address of `laptime serve`, the real command in its own process."""
    with serving(runs) as address:
        yield address


@pytest.fixture(scope="module")
def _list_page(look_once, served):
    return look_once(served + "/")


@pytest.fixture
def listed(_list_page, served):
    """The list of runs, as it is when it is opened."""
    _list_page.page.goto(served + "/")
    _list_page.page.wait_for_selector(FILLED)
    yield _list_page
    _list_page.was_quiet()


def names(seen):
    return seen.texts("table.runs tbody td:nth-child(2)")


def test_the_list_has_every_run_and_a_damaged_one_with_its_reason(listed):
    hostile = "hostile/<img src=x onerror=alert(1)>"
    assert set(names(listed)) == {"everything", hostile, *SWEEP, "recorded", "damaged"}
    assert listed.page.locator("main img").count() == 0
    assert "run.json" in listed.words("td.reason")
    assert listed.words("#count") == "6 of 6 runs"


def test_the_list_fills_in_numbers_that_need_the_rows_of_a_run(listed):
    row = 'tr[data-run="sweep/slow"] [data-fill={}]'
    assert listed.words(row.format("steps")) == "40"
    assert float(listed.words(row.format("step"))) == pytest.approx(40, abs=0.1)
    assert listed.words(row.format("top1")) == "75.0 %"


def test_typing_into_the_search_box_leaves_the_runs_with_these_words(listed):
    listed.page.keyboard.press("/")
    listed.page.keyboard.type("learning_rate=0.2")
    listed.page.wait_for_selector('#count:text-is("1 of 6 runs")')
    assert names(listed) == ["sweep/slow"]
    assert "q=learning_rate" in listed.page.url
    listed.page.keyboard.press("Control+A")
    listed.page.keyboard.type("nothing is called so")
    listed.page.wait_for_selector("text=No run has all of these words.")


def test_a_column_is_sorted_by_its_head_and_the_other_way_by_a_second_click(listed):
    found = []
    for order in ("ascending", "descending"):
        listed.page.click("th a:text-is('run')")
        listed.page.wait_for_selector(f"th[aria-sort={order}] a:text-is('run')")
        found.append([name for name in names(listed) if name != "damaged"])
    assert found[0] == sorted(found[0])
    assert found[1] == found[0][::-1]


def test_two_runs_ticked_by_keys_are_compared_and_the_first_is_the_baseline(listed):
    page = listed.page
    assert page.is_disabled("#compare")
    for name in SWEEP:
        page.focus(f'tr[data-run="{name}"] a')
        page.keyboard.press("Space")
    assert listed.words("#compare") == "compare 2 runs"
    page.focus("#compare")
    page.keyboard.press("Enter")
    page.wait_for_url("**/compare?run=sweep%2Fslow&run=sweep%2Fquick")
    listed.drawn()
    assert len(listed.figures()) >= 4
    told = listed.words("main")
    assert "slow" in told
    assert "quick" in told
    assert "learning_rate" in told  # what differs
    page.go_back()
    page.wait_for_selector('#compare:text-is("compare 2 runs")')
    assert page.is_checked('tr[data-run="sweep/slow"] input')


def test_arrows_move_through_the_list_and_enter_opens_a_run(listed):
    page = listed.page
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")
    first = page.evaluate("() => document.activeElement.textContent")
    page.keyboard.press("ArrowDown")
    second = page.evaluate("() => document.activeElement.textContent")
    assert [first, second] == names(listed)[:2]
    page.focus('tr[data-run="everything"] a')
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/everything")
    listed.drawn()
    assert listed.words("h1") == "everything finished"
    assert listed.marks()["layers"]["bars"] == 3 * len(page_runs.NESTED)
    assert len(listed.figures()) == 17  # as many as the report has
    page.click("text=All runs")
    page.wait_for_url("**:*/")


def test_a_run_that_begins_while_the_list_is_open_appears_in_it(listed, training):
    listed.page.wait_for_selector('tr[data-run="live"]', timeout=15_000)


def test_the_ticks_take_little_room(listed):
    assert listed.page.locator("table.runs tbody tr td").first.bounding_box()["width"] < 60


def test_the_list_is_read_on_a_telephone_and_in_the_dark(look, served):
    with look(served + "/", width=390, scheme="dark") as seen:
        assert seen.overflow() == 0
        assert "everything" in names(seen)


def test_the_list_is_read_searched_and_compared_without_scripts(look, served):
    with look(served + "/", drawn=False, java_script_enabled=False) as seen:
        assert "everything" in seen.words("table.runs")
        seen.page.fill("input[name=q]", "sweep")
        seen.page.keyboard.press("Enter")
        seen.page.wait_for_selector("text=2 of 6 runs")
        for name in SWEEP:
            seen.page.check(f'tr[data-run="{name}"] input')
        seen.page.click("#compare")
        seen.page.wait_for_url("**/compare?*")
        assert "slow" in seen.words("h1 >> xpath=.. >> xpath=..")


def test_a_hostile_run_is_text_on_a_telephone(look, served):
    address = f"{served}/runs/{quote('hostile/<img src=x onerror=alert(1)>')}"
    with look(address, width=390) as seen:
        assert seen.overflow() == 0
        assert "<img src=x onerror=alert(1)>" in seen.words("h1")
        assert seen.page.locator("main img, main b, main i").count() == 0


def test_an_address_that_is_none_says_so_and_leads_back(look, served):
    with look(f"{served}/runs/none", drawn=False, quiet=False) as seen:
        assert "No run and no page has this address" in seen.words()
        seen.page.click("text=All runs")
        seen.page.wait_for_url(served + "/")


@pytest.fixture
def training(runs):
    """A run that is being written by this process: 30 steps so far."""
    path = runs / "live"
    writer = RunWriter.create(path, config={"batch": 64}, environment=page_runs.ENVIRONMENT)
    page_runs.fill(writer, page_runs.NESTED, range(30))
    yield writer
    writer.close("finished", {})
    shutil.rmtree(path)


def steps_drawn(seen):
    count = "() => document.getElementById('plot-step-time')._fullData[1].x.length"
    return seen.page.evaluate(count)


def test_the_page_of_a_run_follows_it_without_reloading_and_says_when_it_ends(look, served, training):
    with look(f"{served}/runs/live") as seen:
        page = seen.page
        assert seen.words("h1") == "live running"
        assert steps_drawn(seen) == 30
        page.evaluate("() => { window.here = true; document.querySelector('details').open = true; }")
        page.select_option('select[data-chooses="one-layer"]', label="head")
        zoomed = zoom(seen, "step-time")
        page_runs.fill(training, page_runs.NESTED, range(30, 50))
        page.wait_for_selector('.tile dd:text-is("50")', timeout=15_000)
        assert "updated" in seen.words("#live")
        assert steps_drawn(seen) == 50
        assert shown_range(seen, "step-time") == pytest.approx(zoomed)
        assert (
            page.eval_on_selector('select[data-chooses="one-layer"]', "(one) => one.selectedOptions[0].text")
            == "head"
        )
        assert page.evaluate("() => window.here && document.querySelector('details').open")
        training.close("finished", {})
        page.wait_for_selector("text=The run has ended; this page is complete.", timeout=15_000)
        assert seen.words("h1") == "live finished"
        assert page.evaluate("() => window.here")
        seen.full()


def test_what_was_selected_while_the_run_ended_is_put_in_when_the_selection_goes(look, served, training):
    with look(f"{served}/runs/live") as seen:
        page = seen.page
        page.evaluate("() => document.getSelection().selectAllChildren(document.querySelector('h1'))")
        training.close("finished", {})
        page.wait_for_selector("text=this page is complete but for what is selected", timeout=15_000)
        assert seen.words("h1") == "live running"
        page.evaluate("() => document.getSelection().removeAllRanges()")
        page.wait_for_selector("text=this page is complete.")
        assert seen.words("h1") == "live finished"


def zoom(seen, figure):
    """Drag over the middle of a figure, as a reader does; the range that is shown then."""
    seen.page.locator(f"#plot-{figure}").scroll_into_view_if_needed()
    box = seen.page.locator(f"#plot-{figure} .nsewdrag").bounding_box()
    y = box["y"] + box["height"] / 2
    seen.page.mouse.move(box["x"] + box["width"] * 0.25, y)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + box["width"] * 0.75, y, steps=4)
    seen.page.mouse.up()
    low, high = shown_range(seen, figure)
    assert 0 < low < high < 30
    return low, high


def shown_range(seen, figure):
    return seen.page.evaluate(f"() => document.getElementById('plot-{figure}')._fullLayout.xaxis.range")


def test_a_page_says_when_the_server_no_longer_answers(look, served, training):
    with look(f"{served}/runs/live", quiet=False) as seen:
        seen.page.context.set_offline(True)
        seen.page.wait_for_selector("text=the server does not answer", timeout=15_000)
        seen.page.context.set_offline(False)
        seen.page.wait_for_selector("#live:text-matches('^updated')", timeout=15_000)
        assert not seen.errors


@pytest.fixture(scope="module")
def _predict_page(look_once, served):
    return look_once(served + "/predict?run=recorded", drawn=False)


@pytest.fixture
def predicted(_predict_page, served):
    """The prediction page, asked about a recorded run."""
    _predict_page.page.goto(served + "/predict?run=recorded&samples=10000&epochs=3")
    _predict_page.page.wait_for_selector(ANSWERED)
    yield _predict_page
    _predict_page.was_quiet()


def slide(seen, name, key, times=1):
    seen.page.focus(f"#slide-{name}")
    for _ in range(times):
        seen.page.keyboard.press(key)


def test_a_prediction_is_drawn_for_every_device_with_its_layers_and_memory(predicted):
    rows = predicted.page.locator("#devices tbody tr").count()
    assert rows > 3
    predicted.full()
    marks = predicted.marks()
    assert marks["devices"]["bars"] == rows
    assert marks["layers"]["bars"] >= 2 * 3
    assert marks["batches"]["points"] > 2


def test_a_slider_moved_by_keys_changes_the_answer_the_figures_and_the_address(predicted):
    page = predicted.page
    before = predicted.marks()["devices"]["bars"]
    assert predicted.words("#told-host") == "× 1"
    slide(predicted, "host", "ArrowRight", times=2)
    assert predicted.words("#told-host") == "× 1.07"
    with page.expect_response("**/api/predict?*host=2*"):
        slide(predicted, "host", "ArrowRight", times=18)
    page.wait_for_selector(ANSWERED)
    assert predicted.words("#told-host") == "× 2"
    assert "host=2" in page.url
    predicted.full()
    assert predicted.marks()["devices"]["bars"] == 2 * before  # as it is, and with what was moved
    with page.expect_response(lambda answer: "/api/predict" in answer.url and "host" not in answer.url):
        page.click("#as-it-is")
    page.wait_for_selector(ANSWERED)
    assert "host=" not in page.url
    assert predicted.marks()["devices"]["bars"] == before


def test_an_address_with_a_question_opens_with_its_answer(predicted, served):
    predicted.page.goto(f"{served}/predict?run=recorded&gpus=4&compute=2")
    predicted.page.wait_for_selector(ANSWERED)
    assert predicted.words("#told-gpus") == "4"
    assert predicted.words("#told-compute") == "× 2"


def test_another_device_is_looked_at_by_its_button(predicted):
    page = predicted.page
    button = page.locator("#devices tbody tr button[aria-pressed=false]").first
    title = button.inner_text()
    button.click()
    page.wait_for_selector(f"#devices button[aria-pressed=true]:text-is('{title}')")
    assert "shown=" in page.url


def test_a_question_without_an_answer_is_one_line_and_no_more(look, served):
    with look(f"{served}/predict?run=everything", drawn=False, quiet=False) as seen:
        seen.page.wait_for_selector("#told.wrong")
        assert 10 < len(seen.words("#told")) < 300
        assert not seen.errors


@pytest.mark.parametrize(
    ("query", "said"), [("network=nope&batch=8", "'nope'"), ("run=recorded&batch=abc", "'abc'")]
)
def test_what_an_address_asks_wrongly_is_told_and_not_another_question(look, served, query, said):
    with look(f"{served}/predict?{query}", drawn=False, quiet=False) as seen:
        seen.page.wait_for_selector(f'#told.wrong:has-text("{said}")')
        seen.page.wait_for_selector("#networks option[value='network:resnet50']", state="attached")
        assert said in seen.words("#told")
        assert seen.page.input_value("select[name=subject]") == query.split("&")[0].replace("=", ":")


@pytest.fixture
def cut_off(runs):
    """The newest run of all; its workload is cut off."""
    path = shutil.copytree(runs / "recorded", runs / "cut-off")
    document = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(document | {"created": "2999-01-01T00:00:00+00:00"}))
    (path / "workload.json").write_text("{")
    yield
    shutil.rmtree(path)


def test_the_prediction_page_opens_with_the_newest_run_that_can_be_read(look, served, cut_off):
    with look(f"{served}/predict", drawn=False, quiet=False) as seen:
        seen.page.wait_for_selector(ANSWERED)
        assert seen.page.input_value("select[name=subject]") == "run:recorded"


def test_the_networks_of_the_zoo_are_offered(predicted):
    predicted.page.wait_for_selector("#networks option[value='network:resnet50']", state="attached")


def test_the_prediction_page_fits_a_telephone(look, served):
    with look(f"{served}/predict?run=recorded", width=390, drawn=False) as seen:
        seen.page.wait_for_selector(ANSWERED)
        seen.full()
        assert seen.overflow() == 0
