"""Real servers on loopback for the synchronisation: sshd, an S3 server, web servers."""

import contextlib
import getpass
import http.server
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# -- sshd ----------


@dataclass(frozen=True)
class Ssh:
    port: int
    home: Path  # a ~ whose .ssh has the key and knows the host

    def address(self, path):
        return f"sftp://{getpass.getuser()}@127.0.0.1:{self.port}{path}"


_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {at}/host
AuthorizedKeysFile {at}/home/.ssh/id_ed25519.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
Subsystem sftp internal-sftp
"""


@contextlib.contextmanager
def an_sshd(at):
    """A real sshd that lets this user in by key, run by this user."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd here; on Debian: apt-get install openssh-server")
    ssh = at / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    for file in (at / "host", ssh / "id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # where a privileged sshd locks its children in
    port = free_port()
    kind, key, *_ = (at / "host.pub").read_text().split()
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    (at / "config").write_text(_CONFIG.format(port=port, at=at))
    with (at / "log").open("wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", at / "config"], stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        _wait_for(port, server, at / "log")
        _let_in(port, ssh, at / "log")
        yield Ssh(port, at / "home")
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(port, server, log):
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if server.poll() is not None:
            break
        time.sleep(0.05)
    pytest.fail(f"sshd did not start: {log.read_text()[-500:]}")


def _let_in(port, ssh, log):
    """An account that sshd lets nobody into, such as a locked one, cannot be tested with."""
    options = (
        "-oBatchMode=yes",
        f"-oUserKnownHostsFile={ssh}/known_hosts",
        f"-oIdentityFile={ssh}/id_ed25519",
    )
    address = ("-P", str(port), f"{getpass.getuser()}@127.0.0.1")
    tried = subprocess.run(
        ["sftp", "-F", "none", *options, "-b", "-", *address],
        input=b"pwd\n",
        capture_output=True,
        check=False,
    )
    if tried.returncode and "not allowed because" in log.read_text():
        pytest.skip(f"sshd: {log.read_text().splitlines()[-1]}")


# -- S3 ----------


@contextlib.contextmanager
def an_s3_server():
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        running.stop()


# -- the web ----------


class Pages(http.server.SimpleHTTPRequestHandler):
    """Python's own server, which lists folders and knows no ranges."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range")))
        super().do_GET()


class Ranges(Pages):
    """Goes on from where it is asked to; answers break off after the bytes that `server.breaks` says."""

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            super().do_GET()
            return
        self.server.asked.append((self.path, self.headers.get("Range")))
        content = path.read_bytes()
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if found:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.server.breaks and len(content) > self.server.breaks[0]:
            self.wfile.write(content[start : start + self.server.breaks.pop(0)])
            self.wfile.flush()
            self.server.broken.set()
            self.server.release.wait(30)
            self.close_connection = True
            return
        self.wfile.write(content[start:])


@contextlib.contextmanager
def a_web_server(folder, handler=Pages):
    """The server and its address; `asked` lists what was asked for."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *given: handler(*given, directory=str(folder))
    )
    server.daemon_threads = True
    server.asked, server.breaks = [], []
    server.broken, server.release = threading.Event(), threading.Event()
    server.release.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
