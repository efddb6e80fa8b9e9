"""Who may look at the page: its token, its certificate, and what opening it to the network logs."""

import base64
import http.client
import ssl
import urllib.request
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from edgert.cli.fleet_view import fetch_stats
from edgert.stages.kinds import Http
from edgert.stages.sink.web.http_server import Access
from edgert.stages.sink.web.http_sink import HttpSink
from tests.helpers.brokers import certificate
from tests.helpers.http_request import answer_of, live_page
from tests.helpers.written import opened

TOKEN = "a-long-secret-token"
WRONG = ("", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", "Basic YW55Ym9keTp3cm9uZw==", "Basic ???", TOKEN, "é")
PATHS = ("/", "/stats.json", "/metrics", "/events.json", "/snapshot.jpg", "/stream.mjpg", "/wall", "/nothing")
STUCK = {"stages": {"find": {"results_in": 3, "stuck_s": 70.0}}}
http_sink = partial(live_page, lambda: STUCK)


def status(sink: HttpSink, path: str, authorization: str = "") -> tuple[int, http.client.HTTPMessage, bytes]:
    return answer_of(sink.url, path, **({"Authorization": authorization} if authorization else {}))


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_only_who_knows_the_token_is_answered() -> None:
    with opened(http_sink(token=TOKEN)) as sink:
        for path in PATHS:
            for wrong in WRONG:
                code, headers, body = status(sink, path, wrong)
                assert code == 401 and TOKEN.encode() not in body
                assert headers["WWW-Authenticate"].startswith('Basic realm="edgert"')
        for right in (f"Bearer {TOKEN}", f"bearer {TOKEN}", basic(f"anybody:{TOKEN}"), basic(f":{TOKEN}")):
            assert status(sink, "/stats.json", right)[0] == 200


def test_whether_it_is_well_anybody_may_know_and_why_not_only_who_has_the_token() -> None:
    with opened(http_sink(token=TOKEN)) as sink:
        assert status(sink, "/healthz")[::2] == (503, b"not well\n")
        assert status(sink, "/healthz", f"Bearer {TOKEN}")[::2] == (503, b"find: in one call for 70 s\n")


def test_https_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "localhost")
    with opened(http_sink(video=True, token=TOKEN, tls={"cert": str(cert), "key": str(key)})) as sink:
        assert sink.url.startswith("https://127.0.0.1:")
        port = int(sink.url.rstrip("/").rpartition(":")[2])
        trusting = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection("localhost", port, timeout=5, context=trusting)
        connection.request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
        assert connection.getresponse().status == 200
        connection.close()
        for given, answer in (("wrong", 401), (TOKEN, 404 if find_spec("aiortc") else 501)):
            connection.request("DELETE", "/whep/yard/1", headers={"Authorization": f"Bearer {given}"})
            assert connection.getresponse().status == answer
            connection.close()
        with pytest.raises((http.client.HTTPException, OSError)):  # whoever does not encrypt gets nothing
            status(sink, "/")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"token": ""}, "it is empty"),
        ({"token": "short"}, "expected 16 to 256 .*this one has 5 characters"),
        ({"token": "with spaces in between it"}, "without spaces"),
        ({"tls": {"cert": "no.pem", "key": "no.key"}}, "cert: the file no.pem does not exist"),
        ({"tls": {"cert": "no.pem"}}, "key"),
    ],
)
def test_keys_that_would_not_protect(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        http_sink(**keys)
    assert all(error["msg"].find(str(keys.get("token") or "\0")) < 0 for error in caught.value.errors())


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "localhost")
    (tmp_path / "other").mkdir()
    _, other = certificate(tmp_path / "other", "localhost")
    text = tmp_path / "text.pem"
    text.write_text("not a certificate")
    for pair, message in (
        ((cert, other), "key is of another certificate"),
        ((text, key), "expected PEM"),
        ((cert, text), "PEM"),
    ):
        with pytest.raises(ValidationError, match=message):
            http_sink(tls={"cert": str(pair[0]), "key": str(pair[1])})


@pytest.mark.parametrize(
    ("token", "warned"), [("", "anybody who can reach http://0.0.0.0"), (TOKEN, "are sent unencrypted")]
)
def test_a_page_that_is_open_to_the_network_is_warned_of(
    caplog: pytest.LogCaptureFixture, token: str, warned: str
) -> None:
    with opened(live_page(host="0.0.0.0", **({"token": token} if token else {}))):
        pass
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert warned in record.getMessage() and TOKEN not in record.getMessage()


def test_a_page_of_this_machine_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with opened(http_sink()):
        pass
    assert [one for one in caplog.records if one.levelname == "WARNING"] == []
    assert TOKEN not in repr(Http.model_validate({"sink": "http", "from": "x", "token": TOKEN}))
    assert TOKEN not in repr(Access(TOKEN))


def test_top_sends_the_token_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(http_sink(token=TOKEN)) as sink:
        monkeypatch.delenv("EDGERT_TOKEN", raising=False)
        assert fetch_stats(sink.url)["trouble"] == "EDGERT_TOKEN is not set"
        monkeypatch.setenv("EDGERT_TOKEN", f"{TOKEN}-not")
        assert fetch_stats(sink.url)["trouble"] == "EDGERT_TOKEN is not its token"
        monkeypatch.setenv("EDGERT_TOKEN", TOKEN)
        assert fetch_stats(sink.url)["stats"] == STUCK
        assert fetch_stats(sink.url.replace("http:", "https:"))["trouble"] == "it does not speak TLS; try http://"


def test_top_says_what_helps_with_a_page_by_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path, "localhost")
    sink = http_sink(token=TOKEN, tls={"cert": str(cert), "key": str(key)})
    sink.open()
    url = sink.url.replace("127.0.0.1", "localhost")
    try:
        assert "https://" in fetch_stats(url.replace("https:", "http:"))["trouble"]
        assert fetch_stats(url)["trouble"] == "self-signed certificate; trust its cert: by SSL_CERT_FILE=page.pem"
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        monkeypatch.setenv("EDGERT_TOKEN", TOKEN)
        monkeypatch.setattr(urllib.request, "_opener", None)  # from Python 3.12 on, it keeps the certificates
        assert fetch_stats(url)["stats"] == STUCK
    finally:
        sink.close()
