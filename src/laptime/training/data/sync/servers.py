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
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from laptime.errors import DataError
from laptime.files.text import first_line
from laptime.training.data.sync.remote import (
    CHUNK,
    Read,
    Reason,
    Remote,
    RemoteEntry,
    SyncBudget,
    kind_of,
    package,
)

Opened = tuple[int, Read, Callable[[], object]]


def _split(address: str) -> tuple[Any, int | None]:
    """An address in its parts, and its port."""
    scheme = address.partition("://")[0].lower()
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise DataError(
            f"the address cannot be understood ({first_line(error)}); write {scheme}://user@host:port/path"
        ) from None
    if not parts.hostname:
        raise DataError(f"the address names no host; write {scheme}://user@host:port/path")
    return parts, port


# -- http and https ---------------------------------------------------------------------------------------

_BUSY = {408, 425, 429, 500, 502, 503, 504}
_LINK = re.compile(r"""<a\s[^<>]*?\bhref\s*=\s*["']([^"'<>]+)["']""", re.I)
_NO_NAME = ("", ".", "./", "..", "../")


class HttpRemote(Remote):
    """A web server that lists its folders as pages of links; sizes come file by file, with a HEAD request."""

    lists_sizes = False

    def __init__(self, address: str, budget: SyncBudget) -> None:
        parts, port = _split(address)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        path = quote(unquote(parts.path.rstrip("/")))
        root = urlunsplit((parts.scheme, f"{host}:{port}" if port else host, path, "", ""))
        super().__init__(root, root, budget)
        self._aiohttp = package("aiohttp")
        settings: dict[str, Any] = {
            "trust_env": True,  # proxies and .netrc
            # A file may take hours; only silence is a failure.
            "timeout": self._aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=60),
            "headers": {"Accept-Encoding": "identity"},  # sizes are of what is stored
        }
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            settings["headers"]["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._fs = package("fsspec.implementations.http").HTTPFileSystem(
            client_kwargs=settings, encoded=True, skip_instance_cache=True
        )

    def _list(self, path: str) -> Iterator[RemoteEntry]:
        """Not fsspec's `ls`: it takes pages of any size, in a time that grows with the square of it."""
        page = package("fsspec.asyn").sync(self._fs.loop, self._page, f"{path}/")
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

    async def _page(self, address: str) -> str:
        # Asked for without its slash, a folder may be answered with a file of that name, or a detour.
        session = await self._fs.set_session()
        async with session.get(self._fs.encode_url(address)) as answer:
            answer.raise_for_status()
            page = bytearray()
            async for piece in answer.content.iter_any():
                page += piece
                self.budget.allow("listing_bytes", len(page))
        return page.decode("utf-8", "replace")

    def _facts(self, entry: RemoteEntry) -> RemoteEntry:
        info = self._fs.info(entry.path)
        version = info.get("ETag") or info.get("Last-Modified") or ""
        return RemoteEntry(name=entry.name, path=entry.path, kind="file", size=info["size"], version=version)

    def _open(self, entry: RemoteEntry, offset: int) -> Opened:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if offset and entry.version and not entry.version.startswith("W/"):
            headers["If-Range"] = entry.version
        file = self._fs.open(entry.path, "rb", block_size=0, size=entry.size or 1, headers=headers)
        return (offset if file.r.status == 206 else 0), lambda: bytes(file.read(CHUNK)), file.close

    def _reasons(self, error: Exception) -> list[Reason]:
        if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # fsspec calls every failure of a HEAD request a missing file
        status, line = getattr(error, "status", None) or 0, first_line(error)
        silent = isinstance(error, (self._aiohttp.ClientConnectorError, TimeoutError))
        forged = isinstance(error, self._aiohttp.ClientSSLError)
        login = "write http(s)://user:password@host/… or use .netrc"
        return [
            (status in (401, 403, 407), f"refuses access ({status}); {login}", False),
            (status in (404, 410), "does not exist; check the address", False),
            (bool(status), f"answers {status} ({line}); try later", status in _BUSY),
            (forged, f"has no certificate that this machine trusts ({line}); check the host", False),
            (silent, f"cannot be reached ({line}); check the address and the network", True),
        ]

    def close(self) -> None:
        """End the connections."""
        if self._fs._session is not None:
            self._fs.close_session(self._fs.loop, self._fs._session)


# -- S3 ---------------------------------------------------------------------------------------------------

_S3_CONFIG = {"connect_timeout": 15, "read_timeout": 60, "retries": {"max_attempts": 2}}
_S3_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_S3_REFUSED = re.compile(
    r"access ?denied|forbidden|invalidaccesskeyid|signature|access key|token|\(403\)", re.IGNORECASE
)


class S3Remote(Remote):
    """A bucket, or a prefix in it. Where no credentials are found, it is asked as a public one."""

    def __init__(self, address: str, budget: SyncBudget) -> None:
        root = address.partition("://")[2].strip("/")
        if not root:
            raise DataError(f"{address} names no bucket; write s3://bucket/prefix")
        super().__init__(f"s3://{root}", root, budget)
        self._fs = self._connect(anonymous=False)

    def _connect(self, *, anonymous: bool) -> Any:
        return package("s3fs").S3FileSystem(
            anon=anonymous, skip_instance_cache=True, use_listings_cache=False, config_kwargs=_S3_CONFIG
        )

    def _list(self, path: str) -> list[RemoteEntry]:
        try:
            listed = self._pages(path)
        except package("botocore.exceptions").NoCredentialsError:
            self.close()
            self._fs = self._connect(anonymous=True)
            listed = self._pages(path)
        if not listed:
            listed = self._fs.ls(path, detail=True, refresh=True)  # raises what is wrong with it
        if any(info["name"] == path for info in listed):
            raise NotADirectoryError(path)
        return [self._entry(path, info) for info in listed if not _is_placeholder(path, info)]

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
            return list(package("fsspec.asyn").sync(self._fs.loop, collect))
        except package("botocore.exceptions").ClientError as error:
            raise package("s3fs.errors").translate_boto_error(error) from error

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
        parent = entry.path.rpartition("/")[0]
        fresh = self._entry(parent, self._fs.info(entry.path, refresh=True))
        bucket, _, key = entry.path.partition("/")
        head = self._fs.call_s3("head_object", Bucket=bucket, Key=key)
        if head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head:
            return replace(fresh, md5=None)
        return fresh  # its tag is a checksum: it is not encrypted with a key of the owner's

    def _open(self, entry: RemoteEntry, offset: int) -> Opened:
        """Not s3fs' files: they take an answer whole, however much it is."""
        bucket, _, key = entry.path.partition("/")
        rest = {"Range": f"bytes={offset}-"} if offset else {}
        body = self._fs.call_s3("get_object", Bucket=bucket, Key=key, **rest)["Body"]
        loop, wait = self._fs.loop, package("fsspec.asyn").sync
        close = partial(loop.call_soon_threadsafe, body.close)  # aiohttp's responses belong to its loop
        return offset, lambda: bytes(wait(loop, body.read, CHUNK)), close

    def _reasons(self, error: Exception) -> list[Reason]:
        name, line = type(error).__name__, first_line(error)
        silent = name in ("EndpointConnectionError", "ConnectTimeoutError")
        unset = name in ("ProfileNotFound", "PartialCredentialsError", "NoRegionError")
        refused = isinstance(error, PermissionError) or bool(_S3_REFUSED.search(str(error)))
        return [
            (silent, f"cannot be reached ({line}); check AWS_ENDPOINT_URL", True),
            (unset, f"was not asked ({line}); {_S3_CREDENTIALS}", False),
            (refused, f"refuses these credentials ({line}); {_S3_CREDENTIALS}", False),
        ]

    def close(self) -> None:
        """End the connections."""
        if self._fs._s3 is not None:
            self._fs.close_session(self._fs.loop, self._fs._s3)


def _is_placeholder(parent: str, info: dict[str, Any]) -> bool:
    """The empty object by which the console shows an empty folder."""
    return bool(info["name"] == f"{parent}/" and info.get("StorageClass") != "DIRECTORY" and not info["size"])


# -- ssh --------------------------------------------------------------------------------------------------

_TIMEOUTS = {"timeout": 15, "banner_timeout": 30, "auth_timeout": 30, "channel_timeout": 30}
_SILENCE_S = 60.0
_PIECE = 2 << 20  # asked for in one go; paramiko's own limit on that makes it twenty times slower: it sleeps


class SftpRemote(Remote):
    """A folder behind ssh. Hosts, keys and names come from ~/.ssh and the agent, as with `ssh` itself.

    paramiko without fsspec, which accepts every host key, tells pipes and files alike, and shares one
    connection between threads.
    """

    def __init__(self, address: str, budget: SyncBudget) -> None:
        parts, port = _split(address)
        path = unquote(parts.path).rstrip("/") or "/"
        if path == "/~" or path.startswith("/~/"):
            path = path[3:] or "."  # below the user's own folder, which is where sftp starts
        user = f"{parts.username}@" if parts.username else ""
        at_port = f":{port}" if port else ""
        shown = f"sftp://{user}{parts.hostname}{at_port}{unquote(parts.path).rstrip('/')}"
        super().__init__(shown, path, budget)
        self._paramiko = package("paramiko")
        # Its threads log every lost connection; what matters of that is told in one line.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self._host, self._login = self._settings(parts, port)
        self._remedy = f"ssh {f'-p {port} ' if port else ''}{user}{parts.hostname}"
        self._mine = threading.local()
        self._clients: list[Any] = []

    def _settings(self, parts: Any, port: int | None) -> tuple[str, dict[str, Any]]:
        """Host and login: what the address says, then what ~/.ssh/config says."""
        path = Path.home() / ".ssh" / "config"
        known = self._paramiko.SSHConfig.from_path(str(path)).lookup(parts.hostname) if path.is_file() else {}
        login: dict[str, Any] = {"port": port or int(known.get("port", 22))}
        if parts.username or "user" in known:
            login["username"] = unquote(parts.username) if parts.username else known["user"]
        if parts.password:
            login["password"] = unquote(parts.password)
        if "identityfile" in known:
            login["key_filename"] = [file for file in known["identityfile"] if os.path.exists(file)]
        return known.get("hostname", parts.hostname), login

    @property
    def _sftp(self) -> Any:
        """This thread's own connection."""
        if getattr(self._mine, "sftp", None) is None:
            self._mine.client, self._mine.sftp = self._connect()
        return self._mine.sftp

    def _connect(self) -> tuple[Any, Any]:
        remedy = self._remedy

        class Refuse(self._paramiko.MissingHostKeyPolicy):  # type: ignore[name-defined,misc]
            def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
                digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
                raise DataError(
                    f"{hostname} is not in ~/.ssh/known_hosts; run `{remedy}` once,"
                    f" and accept its key if it should be SHA256:{digest}"
                )

        client = self._paramiko.SSHClient()
        self._clients.append(client)
        client.load_system_host_keys()
        with suppress(OSError):
            client.load_system_host_keys("/etc/ssh/ssh_known_hosts")
        client.set_missing_host_key_policy(Refuse())
        try:
            client.connect(self._host, **self._login, **_TIMEOUTS)
            # Without it, each piece waits 40 ms for the other side's delayed acknowledgement.
            client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sftp = client.open_sftp()
            sftp.get_channel().settimeout(_SILENCE_S)
        except BaseException:
            client.close()
            raise
        return client, sftp

    def reconnect(self) -> None:
        """The next question of this thread goes over a new connection."""
        if getattr(self._mine, "sftp", None) is not None:
            self._mine.sftp = None
            with suppress(Exception):  # it is broken; how, no longer matters
                self._mine.client.close()

    def close(self) -> None:
        """End the connections."""
        for client in self._clients:
            client.close()

    def _list(self, path: str) -> Iterator[RemoteEntry]:
        if kind_of(self._sftp.stat(path).st_mode) != "folder":
            raise NotADirectoryError(path)
        for about in self._sftp.listdir_iter(path):
            yield _sftp_entry(about.filename, f"{path.rstrip('/')}/{about.filename}", about)

    def _facts(self, entry: RemoteEntry) -> RemoteEntry:
        return _sftp_entry(entry.name, entry.path, self._sftp.stat(entry.path))

    def _open(self, entry: RemoteEntry, offset: int) -> Opened:
        file = self._sftp.open(entry.path, "rb")
        file.seek(offset)

        def read() -> bytes:
            file.prefetch(min(file.tell() + _PIECE, entry.size or 0))
            return bytes(file.read(_PIECE))

        return offset, read, file.close

    def _reasons(self, error: Exception) -> list[Reason]:
        ssh, line = self._paramiko, first_line(error)
        who = self._login.get("username") or "your own user name"
        stranger = isinstance(error, ssh.BadHostKeyException)
        other = "shows another key than ~/.ssh/known_hosts; find out why, then ssh-keygen -R it"
        locked = isinstance(error, ssh.PasswordRequiredException)
        refused = isinstance(error, ssh.AuthenticationException) or "authentication" in str(error).lower()
        silent = (ssh.ssh_exception.NoValidConnectionsError, TimeoutError, socket.gaierror)
        give = "give user@ in the address, and a key in ~/.ssh or ssh-agent"
        return [
            (stranger, other, False),
            (locked, "needs the passphrase of the key; run ssh-add first", False),
            (refused, f"does not accept {who} ({line}); {give}", False),
            (isinstance(error, silent), f"cannot be reached ({line}); check host, port and network", True),
        ]


def _sftp_entry(name: str, path: str, about: Any) -> RemoteEntry:
    version = str(int(about.st_mtime or 0))
    return RemoteEntry(name=name, path=path, kind=kind_of(about.st_mode), size=about.st_size, version=version)
