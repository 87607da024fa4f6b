"""What the door refuses: everything but plain files, links that lead out, and files that explode."""

import gzip
import json
import os
import socket
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laptime.errors import CalibrationError, ConfigError, DamagedRun, DataError, RunError, TrainingError
from laptime.estimate.calibration import Calibration
from laptime.files import parquet, read
from laptime.files.parse import parse_json, parse_toml, parse_yaml
from laptime.files.read import MIB, open_text, read_arrays, read_bytes
from laptime.render.terminal import shortened
from laptime.runs import load, query, table_reader
from laptime.runs.importers import collect
from laptime.runs.importers.training_log import read_line
from laptime.training import checkpoint
from laptime.training.config.reading import read_config
from tests.runs.samples import a_finished_run, add_steps, start

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")


@needs_pipes
def test_only_plain_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        (tmp_path / "link").symlink_to("/dev/zero")
        for name, what in (
            ("pipe", "a pipe"),
            ("socket", "a socket"),
            ("link", "a device"),
            ("", "a folder"),
        ):
            with pytest.raises(OSError, match=f"it is {what}, not a plain file"):
                read_bytes(tmp_path / name)


def test_a_link_is_followed_inside_a_folder_and_not_out_of_it(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "real").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (folder / "stays").symlink_to("real")
    (folder / "leaves").symlink_to(tmp_path / "secret")
    assert read_bytes(folder / "stays", inside=folder) == b"inside"
    with pytest.raises(OSError, match="leads out of its folder"):
        read_bytes(folder / "leaves", inside=folder)
    assert read_bytes(folder / "leaves") == b"outside"  # a path that someone gave is theirs to choose


def test_a_file_larger_than_its_limit_is_refused(tmp_path):
    (tmp_path / "large").write_bytes(bytes(100))
    assert len(read_bytes(tmp_path / "large", most=100)) == 100
    with pytest.raises(OSError, match="more than 99 bytes"):
        read_bytes(tmp_path / "large", most=99)


@needs_pipes
@pytest.mark.parametrize("name", ["run.json", "network.json", "steps/part-r0-000009-000009.parquet"])
def test_a_pipe_or_a_link_in_a_run_is_told_in_one_line(tmp_path, name):
    run = a_finished_run(tmp_path / "run", ["conv"])
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(RunError, match="a pipe, not a plain file"):
        _ = load(run).network
    (run / name).unlink()
    (run / name).symlink_to("/etc/passwd")
    with pytest.raises(RunError, match="leads out of its folder"):
        _ = load(run).network


# -- what explodes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_json, "[" * 100_000),
        (parse_json, '{"a":' * 100 + "1" + "}" * 100),
        (parse_toml, "a" + ".a" * 100_000 + " = 1"),
        (parse_toml, "x = {" + '"b b".' * 1000 + "c = 1}"),
        (parse_toml, "a = " + "[" * 100_000),
        (lambda text: parse_yaml(text.encode()), "[" * 100_000),
        (lambda text: parse_yaml(text.encode()), "- " * 100_000),
    ],
)
def test_deep_nesting_is_refused_before_it_is_built(parse, text):
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse(text)


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, str(2**63), "NaN", "Infinity", "1e999", "-1e999"])
def test_a_number_that_no_table_holds_is_null_in_json(number):
    assert parse_json(f"[{number}, -5, 1.5]") == [None, -5, 1.5]


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "0x" + "f" * 5000])
def test_a_number_that_no_table_holds_is_refused_in_a_configuration(number):
    for parse, text in ((parse_toml, f"a = {number}"), (parse_yaml, f"a: {number}".encode())):
        with pytest.raises(ValueError, match=r"a number of \d+ (digits|bits)|integer string conversion"):
            parse(text)


def test_a_document_of_too_many_items_is_refused():
    with pytest.raises(ValueError, match="more than 4,000,000 items"):
        parse_json("[" + "0," * 4_000_001 + "0]")


def test_an_array_that_says_it_is_larger_than_its_file_is_refused(tmp_path):
    path = tmp_path / "c.npz"
    np.savez(path, small=np.zeros(4))
    assert set(read_arrays(path)) == {"small"}
    header = (
        b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }"
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("head.npy", header.ljust(127) + b"\n")
    with pytest.raises(ValueError, match="larger than its file"):
        read_arrays(path)
    with pytest.raises(CalibrationError, match="laptime calibrate"):
        Calibration.load(path)


def test_an_object_array_is_not_unpickled(tmp_path):
    np.savez(tmp_path / "c.npz", head=np.array([print], dtype=object))
    with pytest.raises(CalibrationError, match="no calibration"):
        Calibration.load(tmp_path / "c.npz")


def test_a_word_repeated_in_every_row_does_not_explode(tmp_path, monkeypatch):
    run = a_finished_run(tmp_path / "run", ["x" * 1000])
    monkeypatch.setattr(table_reader, "MOST_TEXT_BYTES", 10_000)
    assert load(run).stored("layers").read(coded=True).num_rows > 10
    with pytest.raises(DamagedRun, match=r"layer holds 24,\d+ bytes of text"):
        load(run).stored("layers").read()


def test_a_part_with_more_rows_than_bytes_is_refused(tmp_path, monkeypatch):
    run = a_finished_run(tmp_path / "run", ["conv"])
    monkeypatch.setattr(parquet, "MOST_GROUP_ROWS", 4)
    with pytest.raises(DamagedRun, match="a row group is larger than any"):
        load(run)


def test_a_column_of_another_type_or_with_gaps_is_damaged(tmp_path):
    run = a_finished_run(tmp_path / "run", ["conv"])
    (part,) = (run / "steps").glob("*.parquet")
    table = pq.read_table(part)
    place = table.column_names.index("wall_s")
    pq.write_table(table.set_column(place, "wall_s", table["wall_s"].cast(pa.string())), part)
    with pytest.raises(DamagedRun, match="wall_s is string, not double"):
        load(run)
    pq.write_table(table.set_column(place, "wall_s", pa.nulls(len(table), pa.float64())), part)
    with pytest.raises(DamagedRun, match="wall_s has 9 missing values"):
        load(run).steps.table  # noqa: B018


BOMBS = """
    import gzip, resource, signal, sys, zipfile
    from pathlib import Path
    from laptime.errors import LaptimeError
    from laptime.estimate.calibration import Calibration
    from laptime.runs.importers import collect

    folder = Path(sys.argv[1])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
    signal.alarm(60)
    for name, read in (
        ("blanks.json.gz", lambda path: collect(path, folder / "a")),
        ("letters.log.gz", lambda path: collect(path, folder / "b")),
        ("bomb.npz", Calibration.load),
    ):
        try:
            read(folder / name)
        except LaptimeError as error:
            print(error)
"""


def test_bombs_in_gzip_and_npz_end_within_a_gibibyte(tmp_path):
    for name, opening, filler in (
        ("blanks.json.gz", b'{"traceEvents": [', b" "),
        ("letters.log.gz", b"step 1 ", b"x"),
    ):
        with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
            file.write(opening)
            for _ in range(150):
                file.write(filler * 2**20)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr("head.npy", bytes(260 * 2**20))
    script = textwrap.dedent(BOMBS)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout
    assert all("unpacks to more than" in line for line in lines), done.stdout


# -- what took too long ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["1" * 100_000, "step" + " " * 100_000 + "x", "loss 1 " * 20_000, "acc " * 30_000]
)
def test_a_long_line_of_a_log_is_read_at_once(line):
    for _ in range(3):  # with time in the cube of the length, one of them would not end today
        list(read_line(line))


def test_a_long_name_is_shortened_at_once():
    assert shortened("x" * 3_000_000, 20) == "…" + "x" * 19


def test_a_log_of_one_endless_line_is_refused_and_not_kept(tmp_path):
    (tmp_path / "train.log").write_text("step 1 loss 2 " + "x" * 3_000_000)
    with pytest.raises(DataError, match="neither a profiler trace nor a log"):
        collect(tmp_path / "train.log", tmp_path / "run")


def test_a_trace_that_nests_too_deep_is_told_in_one_line(tmp_path):
    text = '{"traceEvents": [{"ph": "X", "args": ' + "[" * 100_000 + "]}"
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(DataError, match="cut off or altered"):
        collect(tmp_path / "t.json", tmp_path / "run")


def test_a_gzip_file_that_is_cut_off_says_so(tmp_path):
    (tmp_path / "t.gz").write_bytes(gzip.compress(b"step 1 " * 1000)[:-20])
    with pytest.raises(ValueError, match="end"), open_text(tmp_path / "t.gz") as file:
        file.read()


def test_a_configuration_of_a_megabyte_is_refused(tmp_path):
    (tmp_path / "c.yaml").write_text("a: " + "x" * 2**20)
    with pytest.raises(ConfigError, match="more than 262,144 bytes"):
        read_config(tmp_path / "c.yaml")


@pytest.mark.parametrize("created", ["0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59-12:00", "soon"])
def test_a_run_of_an_impossible_date_is_damaged(tmp_path, created):
    run = a_finished_run(tmp_path / "run", ["conv"])
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(document | {"created": created}))
    with pytest.raises(DamagedRun, match="created"):
        load(run)


def varint(number):
    """A number as a parquet footer has it: zigzag, seven bits to a byte."""
    number, encoded = (number << 1) ^ (number >> 63), b""
    while number > 127:
        encoded, number = encoded + bytes([number & 127 | 128]), number >> 7
    return encoded + bytes([number])


FACTS = {
    "rows": lambda footer: footer.num_rows,
    "bytes of a row group": lambda footer: footer.row_group(0).total_byte_size,
    "packed bytes of a column": lambda footer: footer.row_group(0).column(8).total_compressed_size,
    "place of a column": lambda footer: footer.row_group(0).column(8).data_page_offset,
}


@pytest.mark.parametrize("claim", [2**33, 2**40, 2**62, -5])
@pytest.mark.parametrize("fact", FACTS)
def test_a_footer_that_claims_what_no_part_has_takes_no_memory(tmp_path, fact, claim):
    writer = start(tmp_path / "run")
    add_steps(writer, range(1234))
    writer.close("finished", {})
    [part] = (tmp_path / "run" / "steps").glob("*.parquet")
    footer_replaced(part, varint(FACTS[fact](pq.ParquetFile(part).metadata)), varint(claim))
    before = pa.default_memory_pool().max_memory()
    if fact == "bytes of a row group" and claim < 0:  # nobody makes room by it
        assert len(load(tmp_path / "run").steps[:]) == 1234
    else:
        with pytest.raises(DamagedRun, match="is damaged"):
            load(tmp_path / "run").steps[:]
    assert pa.default_memory_pool().max_memory() <= max(before, 64 * MIB)


def footer_replaced(part, old, new):
    """Rewrite a part's footer with other bytes in place of `old`."""
    data = part.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    assert old in footer
    footer = footer.replace(old, new)
    part.write_bytes(data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_larger_than_their_footer_says_are_not_unpacked(tmp_path, dictionary):
    run = a_finished_run(tmp_path / "run", ["conv"])
    [part] = (run / "layers").glob("*.parquet")
    rows = pq.read_table(part).slice(0, 2)
    place = rows.column_names.index("layer")
    words = pa.array(["x" * (300 * MIB), "y"])  # which lz4 packs into 1.2 MB
    rows = rows.set_column(place, rows.schema.field(place), words)
    pq.write_table(rows, part, compression="lz4", use_dictionary=dictionary, dictionary_pagesize_limit=2**30)
    facts = pq.ParquetFile(part).metadata.row_group(0)
    for claimed in (facts.total_byte_size, facts.column(place).total_uncompressed_size):
        footer_replaced(part, varint(claimed), varint(1000))
    del rows, words
    before = pa.total_allocated_bytes()
    with pytest.raises(DamagedRun, match="pages unpack to more than its footer says"):
        load(run).stored("layers").read()
    (warning,) = query("SELECT max(layer) FROM layers", [run]).warnings  # DuckDB does not read it either
    assert "pages unpack to more than its footer says" in warning
    assert pa.total_allocated_bytes() - before < MIB


def test_statistics_of_the_wrong_length_are_told_in_one_line(tmp_path):
    """pyarrow ends the process on them."""
    writer = start(tmp_path / "run")
    add_steps(writer, range(1234))
    writer.close("finished", {})
    [part] = (tmp_path / "run" / "steps").glob("*.parquet")
    footer_replaced(part, b"\x08" + (1233).to_bytes(8, "little"), b"\x02\xd1\x04")
    with pytest.raises(DamagedRun, match="its statistics are no integers"):
        load(tmp_path / "run").stored("steps").read(steps=range(3))


def test_a_checkpoint_that_unpacks_to_more_than_the_free_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run" / "checkpoint" / "last.pt"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10 * MIB))
    monkeypatch.setattr(read, "free_memory", lambda: 8 * MIB)
    with pytest.raises(TrainingError, match="unpacks to 10 MiB, more than the 8 MiB that are free"):
        checkpoint.load(path)
    monkeypatch.setattr(read, "free_memory", lambda: 80 * MIB)
    with pytest.raises(TrainingError, match="cannot be read"):  # torch says what is wrong with it
        checkpoint.load(path)


def test_a_checkpoint_of_more_than_256_gibibytes_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run" / "checkpoint" / "last.pt"
    path.parent.mkdir(parents=True)
    with open(path, "wb") as file:
        file.truncate(300 * read.GIB)  # a hole: it takes no space
    monkeypatch.setattr(read, "free_memory", lambda: 2**63)
    with pytest.raises(TrainingError, match="unpacks to 300 GiB, more than the 256 GiB that are allowed"):
        checkpoint.load(path)
