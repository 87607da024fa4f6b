"""Every kind of place, served by a real server on loopback."""

import hashlib
import os

import pytest
from tests.training.data.sync.places import Bucket, Folder
from tests.training.data.sync.servers import a_web_server, an_s3_server, an_sshd

OWNER = {"aws_access_key_id": "somebody", "aws_secret_access_key": "secret"}


@pytest.fixture(scope="session")
def sshd(tmp_path_factory):
    with an_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server():
    with an_s3_server() as address:
        yield address


@pytest.fixture(scope="session")
def s3_client(s3_server):
    """The owner's own way to the buckets; it takes a second to make."""
    from botocore.session import Session

    client = Session().create_client("s3", "us-east-1", endpoint_url=s3_server, **OWNER)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """Nothing of the user's own: no keys, no credentials, no proxies."""
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "here"


@pytest.fixture
def bucket(s3_server, s3_client, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    for name, value in OWNER.items():
        monkeypatch.setenv(name.upper(), value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = f"b{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:20]}"
    s3_client.create_bucket(Bucket=name)
    return Bucket(s3_client, name)


@pytest.fixture(params=["path", "file", "sftp", "s3", "http"])
def place(request, tmp_path, monkeypatch):
    """Every kind of place, empty."""
    root = tmp_path / "there" / "some images"
    if request.param == "s3":
        yield request.getfixturevalue("bucket")
        return
    root.mkdir(parents=True)
    if request.param == "sftp":
        ssh = request.getfixturevalue("sshd")
        monkeypatch.setenv("HOME", str(ssh.home))
        yield Folder(root, ssh.address(root))
    elif request.param == "http":
        with a_web_server(root.parent) as (_, address):
            yield Folder(root, f"{address}/some%20images/")
    else:
        yield Folder(root, f"file://{root}" if request.param == "file" else str(root))
