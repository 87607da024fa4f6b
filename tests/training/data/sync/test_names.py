"""Names and links, there and here, that would lead a file elsewhere."""

import os

import pytest
from tests.training.data.sync.places import Folder, fill, here
from tests.training.data.sync.servers import Pages, a_web_server

from laptime.training.data.sync import refusal, sync
from laptime.training.data.sync.transfer import MANIFEST


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "..\\x", "C:x", "c:", "a\nb", "a\0b", "a\x1b[2J",
     "a\x85b", "\ud800", "\u2028", ".hidden", "x" * 241, "ä" * 121],
)  # fmt: skip
def test_a_hostile_name_is_refused(name):
    assert refusal(name) is not None


@pytest.mark.parametrize(
    "name", ["n01440764_1.JPEG", "a b.jpg", "ä.png", "a..b", "ねこ", "x" * 240, "no:1", "~"]
)
def test_an_honest_name_is_not(name):
    assert refusal(name) is None


def test_hostile_keys_of_a_bucket_are_refused_and_counted(bucket, folder, tmp_path):
    hostile = [
        "cat/../../evil.jpg",
        "cat//abs.jpg",
        "cat/C:evil.jpg",
        "cat/a\\b.jpg",
        "cat/a\x1bb.jpg",
        "../evil/1.jpg",
    ]
    fill(bucket, {"cat/1.jpg": b"good", **dict.fromkeys(hostile, b"bad")})
    done = sync(bucket.address, folder)
    assert here(folder) == {"cat/1.jpg": b"good"}
    assert len(done.refused) == len(hostile)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"1.jpg", MANIFEST}


class Hostile(Pages):
    """A server whose listing leads elsewhere."""

    LINKS = (
        "1.jpg",
        "../../evil.jpg",
        "%2e%2e%2fevil.jpg",
        "..%5cevil.jpg",
        "C:%5cevil.jpg",
        "a%0ab.jpg",
        "%2fetc%2fpasswd",
    )

    def do_GET(self):  # noqa: N802
        links = ["cat/"] if self.path == "/" else self.LINKS
        page = "".join(f'<a href="{link}">x</a>' for link in links)
        body = page.encode() if self.path.endswith("/") else b"content"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815


def test_hostile_links_of_a_web_server_are_refused_and_counted(folder, tmp_path):
    with a_web_server(tmp_path, Hostile) as (_, address):
        done = sync(address, folder)
    assert here(folder) == {"cat/1.jpg": b"content"}
    assert len(done.refused) == 6
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"1.jpg", MANIFEST}


@pytest.mark.parametrize("kind", ["path", "sftp"])
def test_links_there_are_followed_to_files_and_refused_to_folders(
    kind, request, tmp_path, folder, monkeypatch
):
    there = tmp_path / "there"
    fill(Folder(there, ""))
    (there / "cat" / "link.jpg").symlink_to(there / "dog" / "1.jpg")
    (there / "cat" / "round").symlink_to(there)
    (there / "cat" / "nowhere.jpg").symlink_to(there / "gone")
    os.mkfifo(there / "cat" / "pipe.jpg")
    address = str(there)
    if kind == "sftp":
        ssh = request.getfixturevalue("sshd")
        monkeypatch.setenv("HOME", str(ssh.home))
        address = ssh.address(there)
    done = sync(address, folder, classes=["cat"])
    assert (folder / "cat" / "link.jpg").read_bytes() == b"woof"
    assert not (folder / "cat" / "link.jpg").is_symlink()
    refused = {one.name for one in done.refused}
    assert refused == {"cat/round", "cat/nowhere.jpg", "cat/pipe.jpg"}
