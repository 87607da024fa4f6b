"""S3 and what speaks like it. Credentials, region and endpoint come from the usual AWS variables or files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from laptime.errors import DataError
from laptime.files.text import first_line
from laptime.training.data.sync_places import CHUNK, Entry, Place, Read, Trouble, package

_CONFIG = {"connect_timeout": 15, "read_timeout": 60, "retries": {"max_attempts": 2}}
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_REFUSED = re.compile(
    r"access ?denied|forbidden|invalidaccesskeyid|signature|access key|token|\(403\)", re.IGNORECASE
)


class S3Place(Place):
    """A bucket, or a prefix in it. Where no credentials are found, it is asked as a public one."""

    def __init__(self, address: str) -> None:
        root = address.partition("://")[2].strip("/")
        if not root:
            raise DataError(f"{address} names no bucket; write s3://bucket/prefix")
        super().__init__(f"s3://{root}", root)
        self._library = package("s3fs")
        self._fs = self._connect(anonymous=False)

    def _connect(self, *, anonymous: bool) -> Any:
        return self._library.S3FileSystem(
            anon=anonymous, skip_instance_cache=True, use_listings_cache=False, config_kwargs=_CONFIG
        )

    def _entries(self, path: str) -> list[Entry]:
        try:
            found = self._fs.ls(path, detail=True, refresh=True)
        except package("botocore.exceptions").NoCredentialsError:
            self.close()
            self._fs = self._connect(anonymous=True)
            found = self._fs.ls(path, detail=True, refresh=True)
        if any(info["name"] == path for info in found):
            raise NotADirectoryError(path)
        return [self._entry(path, info) for info in found if not _is_placeholder(path, info)]

    def _entry(self, parent: str, info: dict[str, Any]) -> Entry:
        tag = str(info.get("ETag", "")).strip('"')
        # A multipart tag has a dash; a directory bucket's tag is no checksum at all.
        is_md5 = re.fullmatch(r"[0-9a-f]{32}", tag) and not parent.partition("/")[0].endswith("--x-s3")
        return Entry(
            name=info["name"].removeprefix(f"{parent}/"),
            path=info["name"],
            kind="folder" if info["type"] == "directory" else "file",
            size=info["size"],
            version=tag or str(info.get("LastModified", "")),
            md5=tag if is_md5 else None,
        )

    def _facts(self, entry: Entry) -> Entry:
        parent = entry.path.rpartition("/")[0]
        fresh = self._entry(parent, self._fs.info(entry.path, refresh=True))
        bucket, _, key = entry.path.partition("/")
        head = self._fs.call_s3("head_object", Bucket=bucket, Key=key)
        if head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head:
            return Entry(
                name=entry.name, path=entry.path, kind="file", size=fresh.size, version=fresh.version
            )
        return fresh  # its tag is a checksum: it is not encrypted with a key of the owner's

    @contextmanager
    def _reading(self, entry: Entry, offset: int) -> Iterator[tuple[int, Read]]:
        position = offset
        size = entry.size or 0

        def read() -> bytes:
            nonlocal position
            if position >= size:
                return b""
            piece: bytes = self._fs.cat_file(entry.path, start=position, end=min(position + CHUNK, size))
            position += len(piece)
            return piece

        yield offset, read

    def _words(self, error: Exception, where: str) -> Trouble | None:
        name = type(error).__name__
        if name in ("EndpointConnectionError", "ConnectTimeoutError"):
            return Trouble(
                f"{where} cannot be reached ({first_line(error)}); check AWS_ENDPOINT_URL", passing=True
            )
        if name in ("ProfileNotFound", "PartialCredentialsError", "NoRegionError"):
            return Trouble(f"{where} was not asked ({first_line(error)}); {_CREDENTIALS}")
        if isinstance(error, PermissionError) or _REFUSED.search(str(error)):
            return Trouble(f"{where} refuses these credentials ({first_line(error)}); {_CREDENTIALS}")
        return None

    def close(self) -> None:
        """End the connections."""
        if self._fs._s3 is not None:
            self._fs.close_session(self._fs.loop, self._fs._s3)


def _is_placeholder(parent: str, info: dict[str, Any]) -> bool:
    """The empty object by which the console shows an empty folder."""
    return bool(info["name"] == f"{parent}/" and info.get("StorageClass") != "DIRECTORY" and not info["size"])
