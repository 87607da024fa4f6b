"""A remote folder without an end, in size, number or time, is refused in one line."""

import os
import resource
import time

import pytest
from tests.training.data.sync.places import CATS, Folder, fill, here, quickly
from tests.training.data.sync.servers import Pages, a_web_server

from laptime.errors import DataError
from laptime.training.data.sync import SyncLimits, sync


def refused(address, folder, said, **limits):
    with pytest.raises(DataError, match=said) as told:
        sync(address, folder, limits=SyncLimits(**limits), pause=quickly)
    assert "\n" not in str(told.value)


class Endless(Pages):
    """What `sent` of the path yields, until the client has had enough."""

    def do_GET(self):  # noqa: N802
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.close_connection = True
        try:
            for piece in self.sent():
                self.wfile.write(piece)
                self.server.asked.append(len(piece))
        except OSError:
            pass

    announced = 10

    def do_HEAD(self):  # noqa: N802
        self.send_response(200)
        self.send_header("Content-Length", str(self.announced))
        self.end_headers()


class EndlessPage(Endless):
    def sent(self):
        for number in range(10**9):
            yield b"".join(b'<a href="class%d-%d/">x</a>\n' % (number, place) for place in range(1000))


class EndlessTree(Endless):
    def sent(self):
        yield b"".join(b'<a href="%d/">x</a>' % number for number in range(10))


class Liar(Endless):
    """HEAD says 10 bytes, GET sends 1.5 GB."""

    def sent(self):
        if self.path == "/":
            yield b'<a href="cat/">x</a>'
        elif self.path == "/cat/":
            yield b'<a href="1.jpg">x</a><a href="2.jpg">x</a>'
        else:
            yield from (bytes(1 << 20) for _ in range(1500))


class Slow(Liar):
    """A letter now and then, of a gigabyte."""

    announced = 10**9

    def sent(self):
        if self.path.endswith("/"):
            yield from super().sent()
        else:
            while True:
                yield b"x"
                time.sleep(0.05)


def test_a_listing_without_an_end_is_refused_before_it_fills_the_memory(tmp_path, folder):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with a_web_server(tmp_path, EndlessPage) as (_, address):
        refused(address, folder, "more than 64,000,000 bytes in one listing", listing_bytes=64_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kilobytes
    assert not folder.exists()


@pytest.mark.parametrize(
    "page", [b"<a " * 1_000_000, b"<a href=" * 500_000, b"<a href='" * 500_000, b"<a href" + b" " * 3_000_000]
)
def test_a_page_that_only_looks_like_links_is_read_in_no_time(tmp_path, folder, page):
    class Crafted(Endless):
        def sent(self):
            yield page

    with a_web_server(tmp_path, Crafted) as (_, address):
        refused(address, folder, "holds no class folders|lists more")


def test_a_tree_without_an_end_is_refused(tmp_path, folder):
    with a_web_server(tmp_path, EndlessTree) as (_, address):
        refused(address, folder, r"more than 500 files; choose classes or raise --max-files", files=500)
        refused(address, folder, r"more than 50 folders; choose classes", folders=50)
    assert not folder.exists()


def test_a_file_that_is_larger_than_announced_is_not_taken(tmp_path, folder):
    with a_web_server(tmp_path, Liar) as (server, address):
        refused(address, folder, r"2 of 2 files did not come: .* sends more than its 10 bytes")
        assert sum(server.asked) < 200_000_000  # what the sockets held; the rest of 12 GB was not asked for
    assert here(folder) == {}
    assert all(part.stat().st_size == 0 for part in folder.rglob("*.part"))


def test_more_bytes_than_allowed_are_refused_before_they_are_read(place, folder):
    fill(place)
    refused(place.address, folder, r"more than 5,000 bytes; choose classes or raise --max-gb", bytes=5000)
    assert sum(map(len, here(folder).values())) <= 5000
    assert sync(place.address, folder).files > 0
    assert here(folder) == CATS


def test_more_files_than_allowed_are_refused(place, folder):
    fill(place)
    refused(place.address, folder, r"more than 3 files; choose classes or raise --max-files", files=3)
    assert sync(place.address, folder, limits=SyncLimits(files=6)).files == 4


def test_checksums_without_an_end_are_refused(place, folder):
    fill(place)
    place.put("SHA256SUMS", b"x" * 100_000)
    refused(
        place.address, folder, "more than 50,000 bytes in one listing or SHA256SUMS", listing_bytes=50_000
    )


def test_a_server_that_sends_next_to_nothing_is_left_when_the_time_is_over(tmp_path, folder):
    with a_web_server(tmp_path, Slow) as (_, address):
        refused(
            address, folder, r"takes more than .* h; run it again to go on, or raise --max-hours", seconds=2
        )


def test_what_came_before_the_time_was_over_is_kept(tmp_path, folder, monkeypatch):
    there = Folder(tmp_path / "there", str(tmp_path / "there"))
    fill(there)
    from laptime.training.data.sync.transfer import Transfer

    real = Transfer.run

    def waits(self):
        if self.name == "dog/1.jpg":
            while not self.stop.is_set():
                time.sleep(0.01)
        return real(self)

    monkeypatch.setattr(Transfer, "run", waits)
    refused(there.address, folder, "run it again to go on", seconds=2)
    assert len(here(folder)) == 3
    monkeypatch.undo()
    os.sync()
    assert sync(there.address, folder).skipped == 3
