"""A dashboard over a folder of small runs, asked without a socket, or over one letter by letter."""

from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread

import pytest
from starlette.testclient import TestClient
from tests.runs.samples import a_finished_run, start

from laptime.render.server.app import app
from laptime.render.server.connections import open_place, server
from laptime.render.server.guard import Token


@pytest.fixture
def folder(tmp_path):
    """Two finished runs, one of them deeper down, and one that was cut off."""
    runs = tmp_path / "runs"
    a_finished_run(runs / "first", ["conv1", "fc"])
    a_finished_run(runs / "sweep" / "lr=0.1", ["lstm"])
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text('{"schema_ver')
    return runs


@pytest.fixture
def serve():
    """`serve(folder)` gives something to ask."""

    def make(folder, *, networks=None, token=None, **more):
        token = None if token is None else Token(token)
        made = app(folder, networks=networks, token=token)
        return TestClient(made, base_url="http://localhost:8765", follow_redirects=False, **more)

    return make


@pytest.fixture
def ask(serve, folder):
    """`ask(address)` of that folder's dashboard."""
    return serve(folder).get


@pytest.fixture
def growing(tmp_path):
    """A run that is being written by this process, and what writes it."""
    writer = start(tmp_path / "runs" / "growing", batch=64)
    yield writer
    writer.close("finished", {})


@pytest.fixture
def raw():
    """`with raw(folder) as get`: `get(path)` sends that very path, which others would tidy up."""

    @contextmanager
    def make(folder):
        place = open_place("127.0.0.1", 0)
        serving = server(app(folder))
        thread = Thread(target=serving.run, kwargs={"sockets": [place.socket]})
        thread.start()

        def get(path):
            connection = HTTPConnection(place.host, place.port, timeout=20)
            connection.putrequest("GET", path, skip_accept_encoding=True)
            connection.endheaders()
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer.status, text

        try:
            yield get
        finally:
            serving.should_exit = True
            thread.join(timeout=20)
            place.socket.close()

    return make
