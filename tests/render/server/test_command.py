"""`laptime serve` as a shell runs it."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from laptime.cli import app


@contextmanager
def running(folder, *options, **variables):
    command = [sys.executable, "-m", "laptime", "serve", str(folder), "--port", "0", *options]
    environment = {**os.environ, **variables}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def fetched(address):
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def invoked(*arguments):
    return CliRunner().invoke(app, ["serve", *map(str, arguments)], catch_exceptions=False)


def test_the_address_is_printed_and_answers_until_control_c(folder):
    with running(folder, "--json") as process:
        told = json.loads(process.stdout.readline())
        assert told["url"].startswith("http://127.0.0.1:")
        assert fetched(told["url"] + "healthz") == (200, "ok")
        status, page = fetched(told["url"])
        assert status == 200
        assert "sweep/lr=0.1" in page
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == ""
    assert err == ""


def test_a_public_dashboard_prints_a_token_and_asks_for_it(folder):
    with running(folder, "--json", "--public", "--host", "0.0.0.0", LAPTIME_TOKEN="") as process:
        told = json.loads(process.stdout.readline())["url"]
        assert "0.0.0.0" not in told  # which no browser opens
        port = told.split(":")[2].split("/")[0]
        secret = told.split("?token=")[1]
        assert len(secret) > 30
        assert fetched(f"http://127.0.0.1:{port}/?token=wrong")[0] == 401
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {secret}"}
        )
        assert fetched(asked)[0] == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert "not encrypted" in err
    assert secret not in err
    assert "wrong" not in err


def test_an_address_that_others_reach_needs_public(folder):
    done = invoked(folder, "--host", "0.0.0.0")
    assert done.exit_code == 2
    assert "--public" in done.stderr


@pytest.mark.parametrize("token", ["a", " ", "fifteen letters", " " * 20])
def test_a_token_that_is_guessed_is_refused(folder, monkeypatch, token):
    monkeypatch.setenv("LAPTIME_TOKEN", token)
    done = invoked(folder, "--public", "--port", "0")
    assert done.exit_code == 1
    assert "16 letters or more" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_taken_port_names_the_option(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = invoked(folder, "--port", port)
    assert done.exit_code == 1
    assert done.stderr == f"laptime: port {port} is taken; --port gives another, and --port 0 any free one\n"


def test_a_missing_folder_is_told_in_one_line(tmp_path):
    done = invoked(tmp_path / "none")
    assert done.exit_code == 1
    assert "is not a folder" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("package", ["uvicorn", "starlette", "jinja2", "plotly"])
def test_without_the_extra_one_line_names_it(folder, monkeypatch, package):
    for module in [name for name in sys.modules if name.startswith("laptime.render.server")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    done = invoked(folder)
    assert done.exit_code == 1
    assert done.stderr == f"laptime: {package} is not installed; pip install 'laptime[serve]' brings it\n"


def test_the_dashboard_does_without_torch(folder):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from starlette.testclient import TestClient\n"
        "from laptime.api import zoo_workloads\n"
        "from laptime.render.server.app import app\n"
        f"asked = TestClient(app(Path({str(folder)!r}), networks=zoo_workloads()), base_url='http://localhost')\n"
        "print([asked.get(at).status_code for at in ('/', '/runs/first', '/predict', '/api/networks')])\n"
        "print(asked.get('/api/networks').json())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "[200, 200, 200, 200]\n{'networks': None}\n", done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_addresses_are_written_as_a_browser_takes_them(address):
    from laptime.render.server.connections import Place
    from laptime.render.server.guard import Token

    place = Place(socket=None, host=address, port=80)
    host = f"[{address}]" if ":" in address else address
    assert place.url() == f"http://{host}:80/"
    assert place.url(Token("a b&c")) == f"http://{host}:80/?token=a%20b%26c"
