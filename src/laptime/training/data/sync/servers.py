"""Web servers, S3 and ssh. Each kind has its own names, versions, checksums and errors; fsspec transports."""

from __future__ import annotations

import base64
import hashlib
import html
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from laptime.errors import DataError, MissingExtra
from laptime.files.text import first_line
from laptime.training.data.sync.remote import (
    CHUNK,
    LocalRemote,
    Opened,
    Read,
    Remote,
    RemoteEntry,
    SyncBudget,
    SyncLimits,
)


def _package(name: str) -> Any:
    """An optional package, or the line that says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not name.startswith(error.name):
            raise
        raise MissingExtra(name.partition(".")[0], "remote") from error


def _split(address: str) -> SplitResult:
    """An address in its parts; those that raise when they are asked for are checked here."""
    form = f"write {address.partition('://')[0].lower()}://user@host:port/path"
    try:
        parts = urlsplit(address)
        _ = parts.port
        if not parts.hostname:
            raise ValueError("it names no host")
    except ValueError as error:
        raise DataError(f"the address cannot be understood ({first_line(error)}); {form}") from None
    return parts


def _wait(fs: Any, coroutine: Any, *given: Any) -> Any:
    """What a coroutine gives in the loop of fsspec's thread, which aiohttp's responses belong to."""
    return _package("fsspec.asyn").sync(fs.loop, coroutine, *given)


def _stream(fs: Any, stream: Any, answer: Any) -> tuple[Read, Callable[[], object]]:
    """How to read on and how to end."""
    return lambda: bytes(_wait(fs, stream.read, CHUNK)), partial(fs.loop.call_soon_threadsafe, answer.close)


# -- http and https ---------------------------------------------------------------------------------------

_LINK = re.compile(r"""<a\s[^<>]*?\bhref\s*=\s*["']([^"'<>]+)["']""", re.I)
_NO_NAME = ("", ".", "./", "..", "../")


class HttpRemote(Remote):
    """A web server that lists its folders as pages of links; sizes come file by file, with a HEAD request."""

    login = "write http(s)://user:password@host/… or use .netrc"

    def __init__(self, address: str, budget: SyncBudget) -> None:
        parts = _split(address)
        path = quote(unquote(parts.path.rstrip("/")))
        root = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
        super().__init__(root, root, budget)
        headers = {"Accept-Encoding": "identity"}  # sizes are of what is stored
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        # A file may take hours; only silence is a failure.
        timeout = _package("aiohttp").ClientTimeout(total=None, sock_connect=15, sock_read=60)
        self._fs = _package("fsspec.implementations.http").HTTPFileSystem(
            client_kwargs={"trust_env": True, "timeout": timeout, "headers": headers},  # proxies and .netrc
            encoded=True,
            skip_instance_cache=True,
        )

    def _list(self, path: str) -> Iterator[RemoteEntry]:
        """Not fsspec's `ls`: it takes pages of any size, in a time that grows with the square of it."""
        page = self.page(RemoteEntry(name="", path=path, kind="folder"))
        host = "/".join(path.split("/", 3)[:3])
        for link in dict.fromkeys(_LINK.findall(page)):
            text = html.unescape(link)
            text = host + text if text.startswith("/") else text
            if text.startswith(("http://", "https://")) and not text.startswith(f"{path}/"):
                continue  # the folder above, or another site
            text = text.removeprefix(f"{path}/").removeprefix("./")
            if text not in _NO_NAME and not text.startswith(("?", "#")):
                name = unquote(text.removesuffix("/"), errors="surrogateescape")
                address = f"{path}/{quote(name, errors='surrogateescape')}"
                yield RemoteEntry(name=name, path=address, kind="folder" if text.endswith("/") else "file")

    def _facts(self, entry: RemoteEntry) -> RemoteEntry:
        try:
            info = self._fs.info(entry.path)
        except FileNotFoundError as error:  # which fsspec calls every failure of a HEAD request
            raise error.__cause__ or error from None
        version = info.get("ETag") or info.get("Last-Modified") or ""
        return replace(entry, kind="file", size=info["size"], version=version)

    def _open(self, entry: RemoteEntry, offset: int) -> Opened:
        # Asked for without its slash, a folder may be answered with a file of that name, or a detour.
        address = f"{entry.path}/" if entry.kind == "folder" else entry.path
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if offset and entry.version and not entry.version.startswith("W/"):
            headers["If-Range"] = entry.version
        answer = _wait(self._fs, self._answer, address, headers)
        read, close = _stream(self._fs, answer.content, answer)
        return (offset if answer.status == 206 else 0), read, close

    async def _answer(self, address: str, headers: dict[str, str]) -> Any:
        session = await self._fs.set_session()
        answer = await session.get(self._fs.encode_url(address), headers=headers)
        answer.raise_for_status()
        return answer

    def close(self) -> None:
        if self._fs._session is not None:
            self._fs.close_session(self._fs.loop, self._fs._session)


# -- S3 ---------------------------------------------------------------------------------------------------

_S3_CONFIG = {"connect_timeout": 15, "read_timeout": 60, "retries": {"max_attempts": 2}}


class S3Remote(Remote):
    """A bucket, or a prefix in it. Where no credentials are found, it is asked as a public one."""

    refuses = "refuses these credentials"
    login = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"

    def __init__(self, address: str, budget: SyncBudget) -> None:
        root = address.partition("://")[2].strip("/")
        if not root:
            raise DataError(f"{address} names no bucket; write s3://bucket/prefix")
        super().__init__(f"s3://{root}", root, budget)
        self._fs = self._connect(anonymous=False)

    def _connect(self, *, anonymous: bool) -> Any:
        return _package("s3fs").S3FileSystem(
            anon=anonymous, skip_instance_cache=True, use_listings_cache=False, config_kwargs=_S3_CONFIG
        )

    def _list(self, path: str) -> list[RemoteEntry]:
        try:
            listed = self._pages(path)
        except _package("botocore.exceptions").NoCredentialsError:
            self.close()
            self._fs = self._connect(anonymous=True)
            listed = self._pages(path)
        if not listed:
            listed = self._fs.ls(path, detail=True, refresh=True)  # raises what is wrong with it
        if any(info["name"] == path for info in listed):
            raise NotADirectoryError(path)
        return [
            self._entry(path, info)
            for info in listed
            # The console shows an empty folder by an empty object of its name.
            if info["name"] != f"{path}/" or info.get("StorageClass") == "DIRECTORY" or info["size"]
        ]

    def _pages(self, path: str) -> list[dict[str, Any]]:
        """Not s3fs' `ls`: it has no end where the server's pages have none."""
        bucket, _, prefix = path.partition("/")

        async def collect() -> list[dict[str, Any]]:
            listed = []
            async for info in self._fs._iterdir(bucket, prefix=prefix and f"{prefix}/"):
                listed.append(info)
                self.budget.allow("files", len(listed))
            return listed

        try:
            return list(_wait(self._fs, collect))
        except _package("botocore.exceptions").ClientError as error:
            raise _package("s3fs.errors").translate_boto_error(error) from error

    def _entry(self, parent: str, info: dict[str, Any]) -> RemoteEntry:
        tag = str(info.get("ETag", "")).strip('"')
        # A multipart tag has a dash; a directory bucket's tag is no checksum at all.
        is_md5 = re.fullmatch(r"[0-9a-f]{32}", tag) and not parent.partition("/")[0].endswith("--x-s3")
        return RemoteEntry(
            name=info["name"].removeprefix(f"{parent}/"),
            path=info["name"],
            kind="folder" if info["type"] == "directory" else "file",
            size=info["size"],
            version=tag or str(info.get("LastModified", "")),
            md5=tag if is_md5 else None,
        )

    def _facts(self, entry: RemoteEntry) -> RemoteEntry:
        bucket, _, key = entry.path.partition("/")
        head = self._fs.call_s3("head_object", Bucket=bucket, Key=key)
        info = head | {"name": entry.path, "type": "file", "size": head["ContentLength"]}
        fresh = self._entry(entry.path.rpartition("/")[0], info)
        # The tag is no checksum where the object is encrypted with a key of its owner's.
        owners = head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head
        return replace(fresh, md5=None) if owners else fresh

    def _open(self, entry: RemoteEntry, offset: int) -> Opened:
        """Not s3fs' files: they take an answer whole, however much it is."""
        bucket, _, key = entry.path.partition("/")
        rest = {"Range": f"bytes={offset}-"} if offset else {}
        body = self._fs.call_s3("get_object", Bucket=bucket, Key=key, **rest)["Body"]
        return offset, *_stream(self._fs, body, body)

    def close(self) -> None:
        if self._fs._s3 is not None:
            self._fs.close_session(self._fs.loop, self._fs._s3)


# -- ssh --------------------------------------------------------------------------------------------------

_TIMEOUTS = {"timeout": 15, "banner_timeout": 30, "auth_timeout": 30, "channel_timeout": 30}
_SILENCE_S = 60.0
_PIECE = 2 << 20  # asked for in one go; paramiko's own limit on that makes it twenty times slower: it sleeps


class SftpRemote(Remote):
    """A folder behind ssh. Hosts, keys and names come from ~/.ssh and the agent, as with `ssh` itself.

    paramiko without fsspec, which accepts every host key, tells pipes and files alike, and shares one
    connection between threads.
    """

    login = "give user@ in the address, and a key in ~/.ssh or ssh-agent"

    def __init__(self, address: str, budget: SyncBudget) -> None:
        parts = _split(address)
        given = unquote(parts.path).rstrip("/")
        # What is below /~ is in the user's own folder, which is where sftp starts.
        below_home = given == "/~" or given.startswith("/~/")
        user = f"{parts.username}@" if parts.username else ""
        at_port = f":{parts.port}" if parts.port else ""
        root = given[3:] or "." if below_home else given or "/"
        super().__init__(f"sftp://{user}{parts.hostname}{at_port}{given}", root, budget)
        self._paramiko = _package("paramiko")
        # Its threads log every lost connection; what matters of that is told in one line.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        # What the address says counts before what ~/.ssh/config says.
        config = Path.home() / ".ssh" / "config"
        known: Any = {}
        if config.is_file():
            known = self._paramiko.SSHConfig.from_path(str(config)).lookup(parts.hostname)
        self._account = {
            "hostname": known.get("hostname", parts.hostname),
            "port": parts.port or int(known.get("port", 22)),
            "username": unquote(parts.username) if parts.username else known.get("user"),
            "password": unquote(parts.password) if parts.password else None,
            "key_filename": [file for file in known.get("identityfile", ()) if os.path.exists(file)],
        }
        self.refuses = f"does not accept {self._account['username'] or 'your own user name'}"
        self._by_hand = f"ssh {f'-p {parts.port} ' if parts.port else ''}{user}{parts.hostname}"
        self._mine = threading.local()
        self._clients: list[Any] = []

    @property
    def _sftp(self) -> Any:
        """This thread's own connection."""
        if getattr(self._mine, "sftp", None) is None:
            self._mine.client = client = self._paramiko.SSHClient()
            self._clients.append(client)
            client.load_system_host_keys()
            with suppress(OSError):
                client.load_system_host_keys("/etc/ssh/ssh_known_hosts")
            client.set_missing_host_key_policy(self)
            try:
                client.connect(**self._account, **_TIMEOUTS)
                # Without it, each piece waits 40 ms for the other side's delayed acknowledgement.
                client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sftp = client.open_sftp()
                sftp.get_channel().settimeout(_SILENCE_S)
            except BaseException:
                client.close()
                raise
            self._mine.sftp = sftp
        return self._mine.sftp

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """What paramiko asks about a host that it does not know: it is refused."""
        digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
        raise DataError(
            f"{hostname} is not in ~/.ssh/known_hosts; run `{self._by_hand}` once,"
            f" and accept its key if it should be SHA256:{digest}"
        )

    def reconnect(self) -> None:
        """The next question of this thread goes over a new connection."""
        if getattr(self._mine, "sftp", None) is not None:
            self._mine.sftp = None
            with suppress(Exception):  # it is broken; how, no longer matters
                self._mine.client.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _list(self, path: str) -> Iterator[RemoteEntry]:
        if RemoteEntry.of_stat("", path, self._sftp.stat(path)).kind != "folder":
            raise NotADirectoryError(path)
        for about in self._sftp.listdir_iter(path):
            yield RemoteEntry.of_stat(about.filename, f"{path.rstrip('/')}/{about.filename}", about)

    def _facts(self, entry: RemoteEntry) -> RemoteEntry:
        return RemoteEntry.of_stat(entry.name, entry.path, self._sftp.stat(entry.path))

    def _open(self, entry: RemoteEntry, offset: int) -> Opened:
        file = self._sftp.open(entry.path, "rb")
        file.seek(offset)

        def read() -> bytes:
            file.prefetch(min(file.tell() + _PIECE, entry.size or 0))
            return bytes(file.read(_PIECE))

        return offset, read, file.close


_REMOTES: dict[str, type[Remote]] = {
    "file": LocalRemote,
    "sftp": SftpRemote,
    "ssh": SftpRemote,
    "s3": S3Remote,
    "http": HttpRemote,
    "https": HttpRemote,
}


@contextmanager
def open_remote(address: str, limits: SyncLimits) -> Iterator[Remote]:
    """The folder that an address names; a path without `…://` is a folder of this machine."""
    scheme, separator, _ = address.partition("://")
    kind: Any = _REMOTES.get(scheme.lower()) if separator else LocalRemote
    if kind is None:
        known = ", ".join(f"{name}://" for name in _REMOTES)
        raise DataError(
            f"{scheme}:// is no kind of address that laptime knows; it knows {known} and plain paths"
        )
    remote: Remote = kind(address, SyncBudget(limits))
    try:
        yield remote
    finally:
        remote.close()
