"""Who may, and who is there: hosts, keys, credentials, packages, addresses."""

import shutil
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.training.data.sync.places import CATS, Folder, fill, here, one_line
from tests.training.data.sync.servers import Pages, a_web_server, free_port

from laptime.errors import MissingExtra
from laptime.training.data.sync import servers, sync
from laptime.training.data.sync.transfer import MANIFEST


def test_an_unknown_host_is_refused_with_the_way_to_make_it_known(sshd, folder, tmp_path):
    told = one_line(sshd.address("/tmp"), folder)
    assert "not in ~/.ssh/known_hosts; run `ssh -p" in told
    assert "SHA256:" in told


def test_a_host_with_another_key_is_refused(sshd, folder, tmp_path, monkeypatch):
    shutil.copytree(sshd.home, tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    key = (sshd.home / ".ssh" / "id_ed25519.pub").read_text().split()[:2]
    (tmp_path / "home" / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {' '.join(key)}\n")
    assert "another key than ~/.ssh/known_hosts" in one_line(sshd.address("/tmp"), folder)


def test_a_user_without_a_key_is_refused(sshd, folder, tmp_path, monkeypatch):
    shutil.copytree(sshd.home, tmp_path / "home")
    (tmp_path / "home" / ".ssh" / "id_ed25519").unlink()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert "does not accept" in one_line(sshd.address("/tmp"), folder)
    wrong = f"sftp://me:pa55@127.0.0.1:{sshd.port}/tmp"
    told = one_line(wrong, folder)
    assert "does not accept me" in told
    assert "pa55" not in told


def test_ssh_config_is_followed(sshd, folder, tmp_path, monkeypatch):
    fill(Folder(tmp_path / "there", ""))
    shutil.copytree(sshd.home, tmp_path / "home")
    ssh = tmp_path / "home" / ".ssh"
    (ssh / "id_ed25519").rename(ssh / "mine")
    (ssh / "config").write_text(
        f"Host images\n HostName 127.0.0.1\n Port {sshd.port}\n IdentityFile {ssh}/mine\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert sync(f"sftp://images{tmp_path / 'there'}", folder).files == 4


@pytest.mark.parametrize("scheme", ["sftp", "http"])
def test_a_host_that_does_not_answer_is_told(scheme, folder):
    assert "cannot be reached" in one_line(f"{scheme}://127.0.0.1:{free_port()}/x", folder)


def test_an_s3_server_that_does_not_answer_is_told(folder, monkeypatch, bucket):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setitem(servers._S3_CONFIG, "retries", {"max_attempts": 0})  # with a pause before each
    assert "cannot be reached" in one_line("s3://bucket/x", folder)


def test_a_bucket_that_does_not_exist_is_told(folder, bucket):
    assert "does not exist" in one_line("s3://no-such-bucket-here/x", folder)


def test_wrong_s3_credentials_are_told(folder, bucket, s3_server):
    fill(bucket)
    check_credentials(s3_server, after="0")
    try:
        assert "refuses these credentials" in one_line(bucket.address, folder)
    finally:
        check_credentials(s3_server, after="inf")


def check_credentials(s3_server, after):
    """Moto looks at credentials only after so many requests."""
    wanted = urllib.request.Request(
        f"{s3_server}/moto-api/reset-auth", data=after.encode(), headers={"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(wanted).close()


def test_a_public_bucket_needs_no_credentials(folder, bucket, monkeypatch):
    for name, content in CATS.items():
        bucket.client.put_object(Bucket=bucket.bucket, Key=f"images/{name}", Body=content, ACL="public-read")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert sync(bucket.address, folder).files == 4


def test_a_web_server_that_asks_for_a_password_gets_the_one_of_the_address(tmp_path, folder):
    fill(Folder(tmp_path / "there", ""))

    class Locked(Pages):
        def do_GET(self):  # noqa: N802
            if self.headers.get("Authorization") != "Basic bWU6cGE1NQ==":
                self.send_error(401)
            else:
                super().do_GET()

    with a_web_server(tmp_path / "there", Locked) as (_, address):
        assert "refuses access (401)" in one_line(address, folder)
        done = sync(address.replace("//", "//me:pa55@"), folder)
    assert here(folder) == CATS
    assert "pa55" not in done.remote
    assert "pa55" not in (folder / MANIFEST).read_text()


@pytest.mark.parametrize(
    ("address", "package"), [("sftp://h/x", "paramiko"), ("s3://b/x", "s3fs"), ("http://h/x", "aiohttp")]
)
def test_a_missing_package_is_named_with_its_extra(address, package, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package} is not installed; pip install 'laptime\[remote\]'"):
        sync(address, folder)


@pytest.mark.parametrize(
    "address",
    ["gopher://h/x", "sftp:///x", "http:///x", "sftp://h:port/x", "http://h:port/x", "s3://", "http://[/x"],
)
def test_an_address_that_cannot_be_understood_is_told(address, folder):
    one_line(address, folder)


def test_a_local_file_system_never_needs_a_package(tmp_path, folder, monkeypatch):
    for name in ("paramiko", "s3fs", "aiohttp"):
        monkeypatch.setitem(sys.modules, name, None)
    fill(Folder(tmp_path / "there", ""))
    assert sync(Path(tmp_path / "there").as_uri(), folder).files == 4
