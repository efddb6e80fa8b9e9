"""The client of live pages: what a page or a user may get wrong is an error that says so, without the token."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgert.cli.fleet_view import fetch_stats
from edgert.control.client import send_to_page
from edgert.control.request import Request
from edgert.control.trace_window import write_answer
from edgert.errors import ConfigError, DeviceError, EdgertError

SHOW = Request("show")


@pytest.fixture
def broken_page() -> Iterator[str]:
    """Address of a page whose refusal breaks off within a chunk."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(b"HTTP/1.1 500 Broken\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)


def test_a_refusal_that_breaks_off_is_no_crash(broken_page: str) -> None:
    with pytest.raises(DeviceError, match="does not answer"):
        send_to_page(broken_page, SHOW, "token")


def test_an_address_that_is_none_is_no_crash() -> None:
    with pytest.raises(EdgertError, match="does not answer"):
        send_to_page("http://[", SHOW, "token")


@pytest.mark.parametrize("token", ["se\ncret", "sécret"])
def test_a_token_that_http_cannot_send_is_not_shown(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the token cannot be sent") as caught:
        send_to_page("http://127.0.0.1:1", SHOW, token)
    assert "cret" not in str(caught.value)
    monkeypatch.setenv("EDGERT_TOKEN", token)
    assert fetch_stats("http://127.0.0.1:1")["trouble"] == "the token cannot be sent"


def test_a_damaged_recording_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EdgertError, match="damaged"):
        write_answer({"recording": "abc"}, tmp_path / "t.json")
