"""Places that tests fill, and what they look at afterwards."""

import pytest

from laptime.errors import DataError
from laptime.training.data.sync import sync

CATS = {"cat/1.jpg": b"one" * 1000, "cat/2.jpg": b"two" * 2000, "dog/1.jpg": b"woof", "dog/empty.jpg": b""}


class Folder:
    """A place whose files are in a folder of this machine, whoever serves it."""

    def __init__(self, root, address):
        self.root, self.address = root, address

    def put(self, name, content):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


class Bucket:
    def __init__(self, client, bucket):
        self.client, self.bucket, self.address = client, bucket, f"s3://{bucket}/images"

    def put(self, name, content):
        self.client.put_object(Bucket=self.bucket, Key=f"images/{name}", Body=content)


def fill(place, files=CATS):
    for name, content in files.items():
        place.put(name, content)


def here(folder):
    """What a folder holds, our own files aside."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def quickly(_):
    """No pause between two attempts."""


def one_line(remote, folder):
    with pytest.raises(DataError) as told:
        sync(remote, folder, pause=quickly)
    assert "\n" not in str(told.value)
    assert not folder.exists()
    return str(told.value)
