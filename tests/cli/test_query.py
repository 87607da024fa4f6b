import json

from tests.runs.samples import HOSTILE, a_finished_run


def test_query_prints_a_table(laptime, run):
    done = laptime("query", "SELECT layer, count(*) AS n FROM layers GROUP BY layer ORDER BY layer")
    assert done.exit_code == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["layer", "n"],
        ["(loss)", "24"],
        ["(other)", "24"],
        ["conv1", "24"],
        ["fc", "24"],
    ]


def test_query_json_has_columns_rows_and_warnings(laptime, run):
    done = laptime("query", "SELECT sum(calls) AS n, 1.5 AS half, NULL AS nothing FROM layers", "--json")
    assert json.loads(done.stdout) == {
        "columns": ["n", "half", "nothing"],
        "rows": [{"n": 96, "half": 1.5, "nothing": None}],
        "warnings": [],
    }


def test_two_columns_of_one_name_are_both_kept(laptime, run):
    done = laptime("query", "SELECT 1 AS x, 2 AS x", "--json")
    assert json.loads(done.stdout)["rows"] == [{"x": 1, "x_2": 2}]


def test_a_wide_answer_leaves_columns_out_and_says_so(laptime, run):
    done = laptime("query", "SELECT * FROM steps")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "more columns" in done.stderr


def test_a_long_answer_leaves_rows_out_and_says_so(laptime, run):
    done = laptime("query", "SELECT * FROM range(1000)", "--rows", "5")
    assert len(done.stdout.splitlines()) == 6
    assert "995 more rows" in done.stderr


def test_names_are_text_in_an_answer(laptime, tmp_path):
    a_finished_run(tmp_path / "runs" / "hostile", [*HOSTILE, "[red]x"])
    done = laptime("query", "SELECT DISTINCT layer FROM layers", "--rows", "99")
    assert len(done.stdout.splitlines()) == len(HOSTILE) + 4
    assert "[red]x" in done.stdout


def test_a_run_that_cannot_be_read_is_named_and_left_out(laptime, run, tmp_path):
    broken = a_finished_run(tmp_path / "runs" / "broken", ["conv"])
    (broken / "run.json").write_text("{")
    done = laptime("query", "SELECT count(*) FROM runs", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["rows"] == [{"count_star()": 1}]
    assert "broken" in done.stderr


def test_a_file_is_read_with_unsafe_alone(laptime, run, tmp_path):
    (tmp_path / "some.csv").write_text("a\n5\n")
    sql = f"SELECT a FROM read_csv('{tmp_path / 'some.csv'}')"
    refused = laptime("query", sql)
    assert refused.exit_code == 1
    assert "unless --unsafe is given" in refused.stderr
    done = laptime("query", sql, "--unsafe", "--json")
    assert json.loads(done.stdout)["rows"] == [{"a": 5}]


def test_an_empty_query_is_told_in_one_line(laptime, run):
    for sql in ("", "  \n", ";"):
        done = laptime("query", sql)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert done.stderr == 'laptime: the query is empty; give SQL such as "SELECT * FROM runs"\n'
