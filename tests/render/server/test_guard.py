"""Who may ask, for what, and what every answer carries."""

import pytest

from laptime.render.server.guard import HEADERS, Token, is_loopback

TOKEN = "correct horse; battery=staple é"


@pytest.mark.parametrize(
    "address", ["/", "/runs/first", "/runs/none", "/predict", "/healthz", "/compare", "/api/predict"]
)
def test_every_answer_carries_the_headers(ask, address):
    answer = ask(address)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert answer.headers["cache-control"]


def test_no_page_has_a_script_of_its_own(ask):
    for address in ("/", "/runs/first", "/predict", "/runs/none"):
        for tag in ask(address).text.split("<script")[1:]:
            opening = tag.split(">")[0]
            assert 'type="application/json"' in opening or ' src="/static/' in opening
        assert " onclick=" not in ask(address).text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading_is_answered(serve, folder, method):
    answer = serve(folder).request(method, "/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_a_head_request_has_no_body(serve, folder):
    answer = serve(folder).head("/runs/first")
    assert answer.status_code == 200
    assert answer.content == b""


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1", "127.0.0.1:8765", "127.1.2.3", "[::1]:8765"])
def test_a_loopback_name_is_answered(ask, host):
    assert ask("/healthz", headers={"host": host}).text == "ok"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8765", "", "0.0.0.0",
     "localhost@evil.example", "[::1].evil.example", "10.0.0.5"],
)  # fmt: skip
def test_another_name_for_this_machine_is_refused(ask, host):
    answer = ask("/", headers={"host": host})
    assert answer.status_code == 400
    assert "first" not in answer.text


def test_loopback_addresses_are_told_from_others():
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.0.1", "example.org", ""]))


def test_without_the_token_nothing_is_shown(serve, folder):
    client = serve(folder, token=TOKEN)
    for address in ("/", "/runs/first", "/static/x/page.js", "/api/predict", "/none", "/healthz/"):
        answer = client.get(address)
        assert answer.status_code == 401
        assert "first" not in answer.text
        assert answer.headers["content-security-policy"]


def test_a_wrong_token_is_refused_wherever_it_stands(serve, folder):
    client = serve(folder, token=TOKEN)
    assert client.get("/", params={"token": TOKEN + "x"}).status_code == 401
    assert client.get("/", headers={"authorization": "Bearer x"}).status_code == 401
    assert client.get("/", headers={"cookie": "laptime-8765=x"}).status_code == 401
    assert client.get("/", headers={"cookie": f'laptime-8765="{"0" * 64}"; ;;=é'.encode()}).status_code == 401


def test_a_token_in_the_address_becomes_a_cookie_and_leaves_the_address(serve, folder):
    client = serve(folder, token=TOKEN)
    answer = client.get("/", params={"token": TOKEN, "q": "a b", "status": "finished"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?q=a+b&status=finished"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "horse" not in cookie
    assert client.get("/").status_code == 200  # which holds the cookie now


def test_that_it_answers_is_told_without_a_token(serve, folder):
    assert serve(folder, token=TOKEN).get("/healthz").text == "ok"


def test_an_old_token_in_a_bookmark_does_not_lock_out_who_holds_the_cookie(serve, folder):
    client = serve(folder, token=TOKEN)
    client.get("/", params={"token": TOKEN})
    answer = client.get("/", params={"token": "of yesterday", "q": "a"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?q=a")
    assert client.get("/?q=a").status_code == 200


def test_who_has_no_token_is_told_where_it_stands(serve, folder):
    assert "LAPTIME_TOKEN" in serve(folder, token=TOKEN).get("/").text


def test_a_token_opens_a_program_too(serve, folder):
    client = serve(folder, token=TOKEN)
    answer = client.get("/", headers={"authorization": f"Bearer {TOKEN}".encode()})
    assert answer.status_code == 200


def test_the_way_back_from_a_token_never_leads_to_another_machine(serve, folder):
    answer = serve(folder, token="t").get("http://localhost:8765//evil.example/x?token=t")
    assert answer.headers["location"] == "/evil.example/x"


def test_a_token_is_not_shown():
    assert "secret" not in repr(Token("secret"))
