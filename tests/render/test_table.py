"""One table, two renderers: the terminal leaves out what has no room, the page shows everything."""

from laptime.render.html.page import Page, Section, render
from laptime.render.terminal import shortened
from laptime.render.terminal.table import left_out, table_lines
from laptime.views.table import BarPart, Cell, Column, Table, share_cell, table_of, titled


def a_table(**more):
    columns = [
        Column(title="layer", words=True),
        Column(title="forward", priority=2, word="forward"),
        Column(title="share", bar_priority=1, longest_bar=20),
        Column(title="kind", words=True, priority=3, optional=True),
    ]
    parts = (BarPart(share=0.5, word="forward"), BarPart(share=0.5, word="backward"))
    rows = [
        ["conv1", "1.0", Cell(text="60 %", bar=parts), "Conv2d"],
        ["fc", "0.5", Cell(text="40 %", bar=parts[:1]), "Linear"],
    ]
    return Table(name="layers", columns=columns, rows=rows, **more)


def plain(table, width):
    return [line.plain for line in table_lines(table, width)]


def as_html(table):
    page = Page(title="t", sections=[Section(name="s", title="S", tables=[table])])
    return render("sections.html", page=page)


def test_every_line_fits_and_the_least_needed_column_goes_first():
    for width in range(24, 100):
        lines = plain(a_table(), width)
        assert all(len(line) <= width for line in lines), width
    assert "Conv2d" in "\n".join(plain(a_table(), 80))
    assert left_out(a_table(), 36) == ["kind"]
    assert left_out(a_table(), 24) == ["forward", "kind"]


def test_a_bar_takes_what_the_other_columns_leave():
    narrow, wide = (plain(a_table(), width)[1] for width in (40, 80))
    assert 0 < narrow.count("█") + narrow.count("▒") < wide.count("█") + wide.count("▒") <= 20


def test_parts_of_a_bar_are_named_once_below():
    assert plain(a_table(), 80)[3] == "█ forward  ▒ backward"


def drawn_bar(**shares):
    parts = tuple(BarPart(share=share, word=word) for word, share in shares.items())
    columns = [Column(title="layer", words=True), Column(title="share", longest_bar=12)]
    table = Table(name="t", columns=columns, rows=[["conv1", Cell(text="60 %", bar=parts)]])
    return plain(table, 80)[1].partition("%")[2].strip()


def test_the_phases_of_a_bar_have_fills_of_their_own_and_lengths_by_their_time():
    assert drawn_bar(forward=0.25, backward=0.5, update=0.25) == "███▒▒▒▒▒▒░░░"


def test_what_is_too_short_for_a_bar_is_a_thin_line_and_nothing_is_nothing():
    assert drawn_bar(forward=1e-6, backward=2e-6) == "▏"
    assert drawn_bar(forward=0.0, backward=0.0) == ""


def test_what_had_no_room_is_named_unless_the_column_is_optional():
    told = plain(a_table(), 24)[-1]
    assert any("no room for forward" in line for line in plain(a_table(), 24)), told
    assert "kind" not in "\n".join(plain(a_table(), 36))


def test_what_a_column_means_is_told_where_it_is_shown():
    columns = [Column(title="a", words=True), Column(title="b", priority=1, meaning="b is a number")]
    table = Table(name="t", columns=columns, rows=[["x" * 10, "y" * 10]])
    assert plain(table, 60)[-1] == "  b is a number"
    assert "b is a number" not in "\n".join(plain(table, 14))
    assert 'title="b is a number"' in as_html(table)


def test_cells_of_a_column_that_narrows_take_several_lines_and_nothing_is_left_out():
    table = table_of(
        "t",
        [
            (Column(title="constant", words=True, narrows=2), ["one two three four"]),
            (Column(title="unit", words=True, narrows=1, priority=1), ["five six seven"]),
        ],
    )
    lines = plain(table, 16)
    assert all(len(line) <= 16 for line in lines)
    assert {"one", "two", "three", "four", "five", "six", "seven"} <= set(" ".join(lines).split())


def test_the_sum_and_named_rows_stand_out_in_both():
    table = a_table(total=True, bold=[0])
    assert [line.style for line in table_lines(table, 80)[1:3]] == ["bold", "bold"]
    assert as_html(table).count('<tr class="total">') == 2


def test_a_page_shows_every_column_its_bars_links_and_notes():
    table = Table(
        name="t",
        title="Runs",
        columns=titled(("run", "share"), words=1),
        rows=[[Cell(text="<a>", link="/run/a"), share_cell("60 %", 0.6, "forward")]],
        notes=["of `all` runs"],
    )
    page = as_html(table)
    assert '<a href="/run/a">&lt;a&gt;</a>' in page
    assert '<span class="forward" style="width: 60.0%">' in page
    assert "of <code>all</code> runs" in page
    assert '<td class="number">' in page


def test_a_huge_cell_and_very_many_columns_are_laid_out():
    huge = "x" * 3_000_000
    assert shortened(huge, 10) == "…" + "x" * 9
    assert plain(table_of("t", [(Column(title="a", words=True), [huge])]), 20)[1] == "…" + "x" * 19
    many = [(Column(title=f"column {place}", priority=place), ["1"]) for place in range(20_000)]
    assert len(plain(table_of("t", many), 80)[0]) <= 80
    wrapping = table_of("t", [(Column(title="a", words=True, narrows=1), [huge])])
    assert len(plain(wrapping, 20)) < 300


def test_a_table_without_rows_is_its_head():
    assert plain(Table(name="t", columns=titled(("a", "b")), rows=[]), 40) == ["a  b"]
