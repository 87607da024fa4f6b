"""Folders behind ssh. Hosts, keys and names come from ~/.ssh and the agent, as with `ssh` itself."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from laptime.errors import DataError
from laptime.files.text import first_line
from laptime.training.data.sync_places import Entry, Kind, Place, Read, Trouble, package

_TIMEOUTS = {"timeout": 15, "banner_timeout": 30, "auth_timeout": 30, "channel_timeout": 30}
_SILENCE_S = 60.0
_PIECE = 2 << 20  # asked for in one go; paramiko's own limit on that makes it twenty times slower: it sleeps


class SftpPlace(Place):
    """A folder behind ssh. Each thread has a connection of its own: paramiko's may not be shared."""

    def __init__(self, address: str) -> None:
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError as error:
            raise DataError(
                f"the address cannot be understood ({first_line(error)}); write sftp://user@host:port/path"
            ) from None
        if not parts.hostname:
            raise DataError("the address names no host; write sftp://user@host:port/path")
        path = unquote(parts.path).rstrip("/") or "/"
        if path == "/~" or path.startswith("/~/"):
            path = path[3:] or "."  # below the user's own folder, which is where sftp starts
        user = f"{parts.username}@" if parts.username else ""
        at_port = f":{port}" if port else ""
        super().__init__(f"sftp://{user}{parts.hostname}{at_port}{unquote(parts.path).rstrip('/')}", path)
        self._host, self._login = _settings(parts.hostname, port, parts.username, parts.password)
        self._class = _file_system(_remedy(parts.hostname, port, user))
        self._mine = threading.local()
        self._open: list[Any] = []

    @property
    def _fs(self) -> Any:
        if getattr(self._mine, "fs", None) is None:
            fs = self._class(self._host, **self._login, **_TIMEOUTS, skip_instance_cache=True)
            fs.ftp.get_channel().settimeout(_SILENCE_S)
            self._mine.fs = fs
            self._open.append(fs)
        return self._mine.fs

    def forget(self) -> None:
        """The next question of this thread goes over a new connection."""
        fs, self._mine.fs = getattr(self._mine, "fs", None), None
        if fs is not None:
            with suppress(Exception):  # it is broken; how, no longer matters
                fs.client.close()

    def close(self) -> None:
        """End the connections."""
        for fs in self._open:
            fs.client.close()

    def _entries(self, path: str) -> list[Entry]:
        if self._fs.info(path)["type"] != "directory":
            raise NotADirectoryError(path)
        return [_entry(path, info) for info in self._fs.ls(path, detail=True)]

    def _facts(self, entry: Entry) -> Entry:
        return _entry(entry.path.rpartition("/")[0], self._fs.info(entry.path))

    @contextmanager
    def _reading(self, entry: Entry, offset: int) -> Iterator[tuple[int, Read]]:
        with self._fs.open(entry.path, "rb") as file:
            file.seek(offset)

            def read() -> bytes:
                file.prefetch(min(file.tell() + _PIECE, entry.size or 0))
                return bytes(file.read(_PIECE))

            yield offset, read

    def _words(self, error: Exception, where: str) -> Trouble | None:
        paramiko = package("paramiko")
        who = self._login.get("username") or "your own user name"
        if isinstance(error, paramiko.BadHostKeyException):
            return Trouble(
                f"{self._host} shows another key than ~/.ssh/known_hosts; find out why, then ssh-keygen -R it"
            )
        if isinstance(error, paramiko.PasswordRequiredException):
            return Trouble(f"{where}: the key needs a passphrase; run ssh-add first")
        if isinstance(error, paramiko.AuthenticationException) or "authentication" in str(error).lower():
            return Trouble(
                f"{where} does not accept {who} ({first_line(error)});"
                " give user@ in the address, and a key in ~/.ssh or ssh-agent"
            )
        if isinstance(error, (paramiko.ssh_exception.NoValidConnectionsError, TimeoutError, socket.gaierror)):
            return Trouble(
                f"{where} cannot be reached ({first_line(error)}); check host, port and network", passing=True
            )
        return None


def _entry(parent: str, info: dict[str, Any]) -> Entry:
    kinds: dict[str, Kind] = {"file": "file", "directory": "folder", "link": "link"}
    path = info["name"]
    return Entry(
        name=path.removeprefix(f"{parent.rstrip('/')}/"),
        path=path,
        kind=kinds.get(info["type"], "other"),
        size=info["size"],
        version=str(int(info["mtime"].timestamp())),
    )


def _settings(
    host: str, port: int | None, user: str | None, password: str | None
) -> tuple[str, dict[str, Any]]:
    """Host and login: what the address says, then what ~/.ssh/config says."""
    paramiko = package("paramiko")
    # Its threads log every lost connection; what matters of that is told in one line.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    path = Path.home() / ".ssh" / "config"
    config = paramiko.SSHConfig.from_path(str(path)).lookup(host) if path.is_file() else {}
    login: dict[str, Any] = {"port": port or int(config.get("port", 22))}
    if user or "user" in config:
        login["username"] = unquote(user) if user else config["user"]
    if password:
        login["password"] = unquote(password)
    if "identityfile" in config:
        login["key_filename"] = [file for file in config["identityfile"] if os.path.exists(file)]
    return config.get("hostname", host), login


def _remedy(host: str, port: int | None, user: str) -> str:
    return f"ssh {f'-p {port} ' if port else ''}{user}{host}"


def _file_system(remedy: str) -> Any:
    """fsspec's file system, except that it asks known_hosts, and takes no key that is not there."""
    package("paramiko")
    import paramiko
    from fsspec.implementations.sftp import SFTPFileSystem

    class Refuse(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
            raise DataError(
                f"{hostname} is not in ~/.ssh/known_hosts; run `{remedy}` once,"
                f" and accept its key if it should be SHA256:{digest}"
            )

    class KnownHosts(SFTPFileSystem):  # type: ignore[misc]
        @staticmethod
        def _decode_stat(about: Any, parent_path: str | None = None) -> dict[str, Any]:
            info: dict[str, Any] = SFTPFileSystem._decode_stat(about, parent_path)
            if info["type"] == "file" and stat.S_IFMT(about.st_mode) not in (0, stat.S_IFREG):
                info["type"] = "other"  # a pipe: reading it would wait for ever
            return info

        def _connect(self) -> None:
            self.client = paramiko.SSHClient()
            self.client.load_system_host_keys()
            with suppress(OSError):
                self.client.load_system_host_keys("/etc/ssh/ssh_known_hosts")
            self.client.set_missing_host_key_policy(Refuse())
            try:
                self.client.connect(self.host, **self.ssh_kwargs)
                # Without it, each piece waits 40 ms for the other side's delayed acknowledgement.
                self.client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.ftp = self.client.open_sftp()
            except BaseException:
                self.client.close()
                raise

    return KnownHosts
