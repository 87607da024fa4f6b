"""One bad run, hostile requests and slow clients leave everybody else their pages."""

import json
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from threading import Event, Thread

import pytest
from tests.runs.samples import a_finished_run

from laptime.render.server.app import app
from laptime.render.server.connections import ConnectionLimits, LimitedConnection, open_place, server

DEEP = json.loads("[" * 200 + "]" * 200)
ODD = {
    "created in year 1": {"created": "0001-01-01T00:00:00"},
    "created in year 1 with a zone": {"created": "0001-01-01T00:00:00+14:00"},
    "created in year 9999": {"created": "9999-12-31T23:59:59-14:00"},
    "created at a date alone": {"created": "2024-02-29"},
    "created in a week": {"created": "2024-W01-1"},
    "a summary of lists": {"summary": {"steps": [1], "step_s": [1], "wall_s": [1], "workload": [1]}},
    "huge numbers": {"summary": {"steps": {"train": 10**400}, "step_s": {"median": 1e308}, "wall_s": 1e308}},
    "negative numbers": {"summary": {"steps": {"train": -5}, "step_s": {"median": -1.0}, "wall_s": -1.0}},
    "not a number": {"summary": {"wall_s": float("nan"), "step_s": {"median": float("inf")}}},
    "a device of numbers": {"environment": {"device": {"name": 5, "type": 7}}},
    "half a character": {"environment": {"device": {"name": "\ud800"}}, "config": {"network": "\udfff"}},
    "a status of its own": {"status": "dancing"},
    "a heartbeat of its own": {"status": "running", "heartbeat": {"pid": 10**30, "host": 5, "time": []}},
    "a heartbeat of this host": {
        "status": "running",
        "heartbeat": {"pid": 10**30, "host": socket.gethostname(), "boot_id": None, "started": {}},
    },
    "a heartbeat in year 1": {"status": "running", "heartbeat": {"time": "0001-01-01T00:00:00+14:00"}},
    "health of its own": {"health": {"lost_rows": 5, "waiting_rows": {"steps": "many"}, "notes": 3}},
    "a workload that is not there": {"summary": {"workload": {"read": True}}},
    "deep": {"config": {"network": DEEP}},
    "outputs of numbers": {"outputs": {"x": 5}},
    "an id of control characters": {"id": "\x1b[2J\u202e"},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_a_bad_run_never_spoils_a_page_of_others(serve, folder, odd):
    path = folder / "first" / "run.json"
    document = json.loads(path.read_text())
    document["summary"]["workload"] = {"read": True}
    path.write_text(json.dumps(document | odd))
    client = serve(folder, raise_server_exceptions=False)
    for address in ("/", "/?sort=step_s", "/?sort=started&q=conv", "/predict", "/runs/sweep/lr=0.1"):
        page = client.get(address)
        assert page.status_code == 200, address
        assert "laptime itself failed" not in page.text
    assert "sweep/lr=0.1" in client.get("/").text
    numbers = client.get("/api/results?run=first&run=sweep/lr%3D0.1")
    assert numbers.status_code == 200
    assert numbers.json()["sweep/lr=0.1"]["steps"]
    own = client.get("/runs/first")
    assert "laptime itself failed" not in own.text
    assert client.get("/compare?run=first&run=sweep/lr%3D0.1").status_code in (200, 500)


# -- requests -------------------------------------------------------------------------------------


@contextmanager
def answering(folder, connection=LimitedConnection):
    """A real server on a port of its own."""
    place = open_place("127.0.0.1", 0)
    running = server(app(folder), connection)
    thread = Thread(target=running.run, kwargs={"sockets": [place.socket]})
    thread.start()
    try:
        yield place.port
    finally:
        running.should_exit = True
        thread.join(timeout=20)
        place.socket.close()


class Hasty(LimitedConnection):
    limits = ConnectionLimits(header_s=0.5)


def status_of(port, path="/healthz"):
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def sent(port, content):
    """All that comes back for these bytes; nothing where the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        received = b""
        try:
            connection.sendall(content)
            while piece := connection.recv(1 << 16):
                received += piece
        except ConnectionError:
            pass
        return received


def request(target, method="GET", host="localhost", headers=(), body=""):
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "Connection: close", "", body]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")


LONG = "x" * 60_000
PATHS = [
    "/..", "/../", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd",
    "/runs/..", "/runs/../../etc/passwd", "/runs/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/runs/..%5c..%5cetc",
    "/runs/%00", "/runs/first%00", "/runs/%0d%0aSet-Cookie:x", "/runs/%ff%fe", "/runs/%ed%a0%80",
    "/runs/%", "/runs/%zz", "/runs/" + "../" * 1000, "/runs/" + "a/" * 5000, "/runs/" + LONG,
    "/runs//etc/passwd", "/runs/first/run.json", "/runs/first/", "/static/", "/static/../app.py",
    "/static/%2e%2e/%2e%2e/etc/passwd", "/static/" + LONG, "//", "///", "//evil.example/", "/\\evil",
    "http://localhost/", "http://evil.example/", "*", "/;", "/#x", "/?", "/??", "/api", "/api/", "/healthz/x",
    "/runs/%F0%9F%92%A9", "/runs/%e2%80%ae", "/.git/config", "/favicon.ico", "/wp-admin.php",
]  # fmt: skip
QUERIES = [
    "/?page=-1", "/?page=999999999999999999999", "/?page=%00", "/?page=1e9", "/?page=٣", "/?sort=__class__",
    "/?sort=" + LONG, "/?order=" + LONG, "/?q=" + LONG, "/?q=%ff%fe", "/?q=%00", "/?status=%ed%a0%80",
    "/?device=" + "%00" * 1000, "/?" + "a&" * 20_000, "/?" + "q=1&" * 10_000, "/?=", "/?&&&&", "/?q[]=1",
    "/?q={{7*7}}", "/?q=<script>", "/compare", "/compare?run=", "/compare?run=first",
    "/compare?run=first&run=..%2f..", "/compare?" + "run=first&" * 5000, "/compare?run=first&run=%00",
    "/compare?" + "&".join(f"run={number}" for number in range(60)), "/compare?run=%ff&run=%fe",
    "/api/results", "/api/results?run=", "/api/results?run=%00", "/api/results?run=../../etc",
    "/api/results?" + "&".join(f"run={number}" for number in range(5000)), "/api/results?run=%ed%a0%80",
    "/api/predict", "/api/predict?run=first", "/api/predict?run=%00", "/api/predict?run=..%2f..%2fetc",
    "/api/predict?workload=/etc/passwd", "/api/predict?workload=%00", "/api/predict?network=os:system",
    "/api/predict?run=first&batch=-1", "/api/predict?run=first&batch=1e400", "/api/predict?run=first&gpus=0",
    "/api/predict?run=first&gpus=nan", "/api/predict?run=first&device=" + LONG, "/api/predict?x=" + LONG,
    "/predict?" + LONG, "/?token=" + LONG,
]  # fmt: skip
REQUESTS = [
    *(request(target) for target in PATHS + QUERIES),
    *(
        request("/", method=method)
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "X" * 99)
    ),
    *(
        request("/", host=host)
        for host in (
            "", "evil.example", "localhost.evil.example", "127.0.0.1@evil", "[::1", "localhost:99999999",
            "localhost:x", "\x7f", "ü", LONG, "localhost, evil", "0x7f.1", "127.1",
        )
    ),
    *(
        request("/runs/first", headers=headers)
        for headers in (
            ["If-None-Match: " + '"x",' * 15_000], ["If-None-Match: \xff"], ["If-None-Match: W/"],
            ["Accept-Encoding: " + LONG], ["Cookie: " + "a=b; " * 10_000], ["Cookie: =;;;=\x01"],
            ["Authorization: Bearer " + LONG], ["Authorization: \xff"], ["Range: bytes=0-0,5-,-1"],
            ["Upgrade: websocket", "Connection: Upgrade"], ["Upgrade: h2c"], ["Content-Length: 5"],
            ["Content-Length: -1"], ["Content-Length: 99999999999999999999"], ["Content-Length: x"],
            ["Content-Length: 1", "Content-Length: 2"], ["Transfer-Encoding: chunked"],
            ["Transfer-Encoding: chunked", "Content-Length: 4"], ["Transfer-Encoding: gzip"],
            ["Expect: 100-continue"], ["X-Forwarded-For: evil", "X-Forwarded-Host: evil"], ["Host: evil"],
            ["no colon here"], [": empty name"], ["A" * 60_000 + ": x"], [f"X-{n}: y" for n in range(3000)],
            ["Origin: http://evil.example"], ["Referer: http://evil.example/"],
        )
    ),
    request("/", headers=["Transfer-Encoding: chunked"], body="ZZZ\r\n"),
    request("/", headers=["Transfer-Encoding: chunked"], body="fffffffffffffffff\r\n"),
    request("/", headers=["Content-Length: 3"], body="too much of it"),
    b"", b"\r\n" * 100, b"\0" * 1000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n",
    b"GET /\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"x" * 200_000,
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n\xff\xfe",
]  # fmt: skip


def test_hostile_requests_never_give_a_mistake_of_ours(folder, capfd):
    assert len(REQUESTS) >= 100
    answered = 0
    with answering(folder, Hasty) as port:
        for content in REQUESTS:
            received = sent(port, content)
            answered += received.startswith(b"HTTP/1.1 ")
            assert b"500 Internal" not in received, content[:200]
            assert b"Traceback" not in received, content[:200]
            assert b"root:" not in received, content[:200]
        assert status_of(port, "/runs/first") == 200
    assert answered > 0.9 * len(REQUESTS)
    assert "Traceback" not in capfd.readouterr().err


# -- slow clients ---------------------------------------------------------------------------------


class Small(LimitedConnection):
    limits = ConnectionLimits(header_s=600.0, most=20)


HALVES = (b"", b"GET / HTTP/1.1\r\nHost: local", b"GET /runs/first HTTP/1.1\r\nHost: localhost\r\nX: ")
ASKS = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ASKS_ONCE = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def opened(stack, port, content):
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
    connection.sendall(content)
    return connection


def closed(connection):
    """Waits until the other side has closed it."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def test_two_hundred_slow_clients_stop_nobody(folder):
    with answering(folder) as port, ExitStack() as stack:
        for number in range(200):
            opened(stack, port, HALVES[number % len(HALVES)])
        for number in range(50):  # who ask and do not read
            opened(stack, port, ASKS * (number % 3 + 1))
        for path in ("/healthz", "/", "/runs/first", "/predict"):
            assert status_of(port, path) == 200


def test_a_request_that_does_not_come_is_not_waited_for(folder):
    with answering(folder, Hasty) as port, ExitStack() as stack:
        waiting = [opened(stack, port, half) for half in (*HALVES, ASKS + b"GET / HT")]
        assert all(closed(connection) for connection in waiting)


def test_a_client_that_sends_a_letter_now_and_then_is_not_waited_for(folder):
    with answering(folder, Hasty) as port, ExitStack() as stack:
        connection = opened(stack, port, b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.05)
        for _ in range(400):
            with suppress(TimeoutError):
                connection.sendall(b"X")
                if not connection.recv(1):
                    return
    pytest.fail("it is still waited for")


def test_more_connections_than_allowed_end_the_oldest_that_ask_nothing(folder):
    with answering(folder, Small) as port, ExitStack() as stack:
        waiting = [opened(stack, port, HALVES[1]) for _ in range(60)]
        assert status_of(port, "/") == 200
        assert all(closed(connection) for connection in waiting[:40])


def test_health_is_told_while_every_worker_is_busy(folder, monkeypatch):
    from laptime.render.server.index import Index

    release, busy = Event(), []

    def waits(*_):
        busy.append(1)
        release.wait(30)
        return []

    monkeypatch.setattr(Index, "entries", waits)
    with answering(folder) as port, ExitStack() as stack:
        try:
            for number in range(100):
                opened(stack, port, f"GET /?q={number} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert status_of(port) == 200
            assert busy
        finally:
            release.set()


def test_requests_that_wait_for_the_same_answer_share_one(folder, monkeypatch):
    from laptime.render.server import app as addresses

    release, made, real = Event(), [], addresses.draw

    def slow(template, **values):
        if template == "runs.html":
            made.append(1)
            release.wait(30)
        return real(template, **values)

    monkeypatch.setattr(addresses, "draw", slow)
    with answering(folder) as port, ExitStack() as stack:
        asking = [opened(stack, port, ASKS_ONCE)]
        while not made:
            time.sleep(0.01)
        asking += [opened(stack, port, ASKS_ONCE) for _ in range(50)]
        assert status_of(port) == 200  # behind them on the same loop
        time.sleep(0.2)
        release.set()
        assert all(closed(connection) for connection in asking)
    assert len(made) <= 6  # the first, four threads that were free, and one for all the others


def test_a_run_recorded_while_an_answer_is_made_is_in_the_next_answer(folder, serve):
    client = serve(folder)
    assert "another" not in client.get("/").text
    a_finished_run(folder / "another", ["conv1"])
    assert "another" in client.get("/").text
