"""What one kind of place does in its own way, and what goes wrong on the way."""

import contextlib
import errno
import hashlib
import http.server
import os
import shutil
import threading

import pytest
from tests.training.data.sync.places import CATS, Folder, fill, here, quickly
from tests.training.data.sync.servers import Pages, Ranges, a_web_server

from laptime.errors import DataError
from laptime.training.data.sync import remote, sync, transfer
from laptime.training.data.sync.transfer import MANIFEST


def test_an_empty_class_is_an_error_if_chosen_and_told_if_not(tmp_path, folder):
    there = Folder(tmp_path / "there", str(tmp_path / "there"))
    fill(there)
    (there.root / "owl").mkdir()
    with pytest.raises(DataError, match=r"class 'owl' holds no files at"):
        sync(there.address, folder, classes=["cat", "owl"])
    assert sync(there.address, folder).empty == ("owl",)


def test_an_object_that_is_not_what_its_tag_says_is_detected(bucket, folder, monkeypatch):
    fill(bucket)
    from aiobotocore.response import StreamingBody

    real = StreamingBody.read

    async def spoilt(*given, **more):
        return (await real(*given, **more)).replace(b"woof", b"wo0f")

    monkeypatch.setattr(StreamingBody, "read", spoilt)
    with pytest.raises(DataError, match=r"dog/1.jpg is not what its ETag says"):
        sync(bucket.address, folder, pause=quickly)
    assert "dog/1.jpg" not in here(folder)
    monkeypatch.undo()


def test_a_bucket_with_many_objects_and_folder_marks_comes_whole(bucket, folder, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")  # a real server's pages have 1000
    fill(bucket, {"cat/": b"", **{f"cat/{number}.jpg": b"x" for number in range(45)}})
    done = sync(bucket.address, folder, jobs=16)
    assert (done.files, done.verified, done.refused) == (45, 45, ())


def test_a_transfer_that_breaks_off_goes_on_by_itself(tmp_path, folder):
    content = os.urandom(3_000_000)
    fill(Folder(tmp_path / "there", ""), {"cat/1.jpg": content})
    with a_web_server(tmp_path / "there", Ranges) as (server, address):
        server.breaks = [1_000_000]
        done = sync(address, folder, pause=quickly)
    ranges = [wanted for path, wanted in server.asked if path == "/cat/1.jpg"]
    assert here(folder) == {"cat/1.jpg": content}
    assert ranges[0] is None
    assert ranges[1].startswith("bytes=")
    assert done.bytes == len(content)


def test_a_server_without_ranges_is_read_from_the_start_again(tmp_path, folder):
    content = os.urandom(100_000)
    fill(Folder(tmp_path / "there", ""), {"cat/1.jpg": content})
    with a_web_server(tmp_path / "there", Ranges) as (server, address):
        server.breaks = [10_000]
        with pytest.raises(DataError, match=r"broke off|cannot be read"):
            sync(address, folder, pause=lambda _: server.breaks.append(10_000))
        port = server.server_port
    assert list(folder.rglob("*.part"))
    with _again(tmp_path / "there", port) as address:
        sync(address, folder)
    assert here(folder) == {"cat/1.jpg": content}


@contextlib.contextmanager
def _again(folder, port):
    """The same address, another server."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", port), lambda *given: Pages(*given, directory=str(folder))
    )
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_part_that_was_spoilt_here_is_brought_again_from_the_start(tmp_path, folder):
    content = os.urandom(100_000)
    there = Folder(tmp_path / "there", "")
    fill(there, {"cat/1.jpg": content})
    with a_web_server(tmp_path / "there", Ranges) as (server, address):
        server.breaks = [10_000]
        with pytest.raises(DataError, match=r"broke off|cannot be read"):
            sync(address, folder, pause=lambda _: server.breaks.append(10_000))
        server.breaks.clear()
        (part,) = folder.rglob("*.part")
        with part.open("r+b") as file:
            file.write(b"spoilt")
        there.put("SHA256SUMS", f"{hashlib.sha256(content).hexdigest()}  cat/1.jpg\n".encode())
        done = sync(address, folder, pause=quickly)
    assert here(folder) == {"cat/1.jpg": content}
    assert done.verified == 1


def test_a_server_that_is_busy_for_a_moment_is_asked_again(tmp_path, folder):
    fill(Folder(tmp_path / "there", ""))

    class Busy(Pages):
        times = 3

        def do_HEAD(self):  # noqa: N802
            Busy.times -= 1
            if Busy.times >= 0:
                self.send_error(503)
            else:
                super().do_HEAD()

        def do_GET(self):  # noqa: N802
            if Busy.times > 0 and self.path.endswith(".jpg"):
                self.send_error(503)
            else:
                super().do_GET()

    with a_web_server(tmp_path / "there", Busy) as (_, address):
        sync(address, folder, jobs=1, pause=quickly)
    assert here(folder) == CATS


def test_what_is_here_under_another_name_of_the_place_is_adopted_by_its_checksum(tmp_path, folder):
    there = Folder(tmp_path / "there", str(tmp_path / "there"))
    fill(there, {"cat/1.jpg": b"x" * 100})
    there.put("SHA256SUMS", f"{hashlib.sha256(b'x' * 100).hexdigest()}  cat/1.jpg\n".encode())
    shutil.copytree(there.root / "cat", folder / "cat")
    done = sync(there.address, folder)
    assert (done.bytes, done.skipped, done.verified) == (0, 1, 1)


def test_a_spoilt_manifest_is_no_manifest(tmp_path, folder):
    there = Folder(tmp_path / "there", str(tmp_path / "there"))
    fill(there)
    sync(there.address, folder)
    (folder / MANIFEST).write_text("{")
    assert sync(there.address, folder).files == 4
    assert sync(there.address, folder).skipped == 4


def test_a_folder_inside_the_place_is_refused(tmp_path):
    fill(Folder(tmp_path / "there", ""))
    with pytest.raises(DataError, match=r"hold each other"):
        sync(str(tmp_path / "there"), tmp_path / "there" / "cat")


def test_two_at_a_time_are_one_too_many(tmp_path, folder):
    fcntl = pytest.importorskip("fcntl")
    fill(Folder(tmp_path / "there", ""))
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(DataError, match=r"another synchronisation is writing to"):
            sync(str(tmp_path / "there"), folder)
    finally:
        os.close(descriptor)


def test_a_disk_that_is_too_small_is_told_before_anything_is_read(tmp_path, folder, monkeypatch):
    fill(Folder(tmp_path / "there", ""))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(DataError, match=r"GB free; choose fewer classes or make room"):
        sync(str(tmp_path / "there"), folder)
    assert here(folder) == {}


def test_a_disk_that_fills_up_stops_everything_with_one_line(tmp_path, folder, monkeypatch):
    fill(Folder(tmp_path / "there", ""))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "_write_all", full)
        with pytest.raises(DataError, match=r"no room for .*No space left on device.*run it again to go on"):
            sync(str(tmp_path / "there"), folder)
    sync(str(tmp_path / "there"), folder)
    assert here(folder) == CATS


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    fill(Folder(tmp_path / "there", ""))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written .*; give another folder"):
        sync(str(tmp_path / "there"), tmp_path / "file" / "here")


def test_a_place_that_is_gone_halfway_ends_it_soon(tmp_path, folder, monkeypatch):
    fill(Folder(tmp_path / "there", ""), {f"cat/{number}.jpg": b"x" for number in range(200)})

    def gone(*_):
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    monkeypatch.setattr(remote.LocalRemote, "_open", gone)
    with pytest.raises(DataError, match=r"32 files in a row did not come: .*reset"):
        sync(str(tmp_path / "there"), folder, pause=quickly)
