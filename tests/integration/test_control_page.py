"""Changes through the live page: with its token alone, by the handler of ``edgert ctl``, and logged by address."""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from socket import SO_SNDBUF, SOL_SOCKET
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

import edgert
from edgert import Pipeline, limits
from edgert.control import client
from edgert.control.client import send_to_page
from edgert.control.request import Request
from edgert.errors import ConfigError, DeviceError, EdgertError, StageError
from tests.helpers.command import in_process
from tests.helpers.recordings import LEFT, MODEL
from tests.helpers.waiting import wait_until

TOKEN = "a-token-of-a-page-1234"
TEXT = """
stages:
  cam: {source: "synthetic:noise", size: 64x48, realtime: true, fps: 30}
  draw: {draw: [boxes], from: cam}
  page: {sink: http, from: draw, port: 0, token: TOKEN}
"""


def address(pipeline: Pipeline) -> str:
    page: Any = pipeline._assembly.task("page").stage
    wait_until(lambda: page.url)
    return str(page.url).rstrip("/")


@pytest.fixture
def belt(tmp_path: Path) -> Iterator[Pipeline]:
    path = tmp_path / "belt.yaml"
    path.write_text(TEXT.replace("TOKEN", TOKEN))
    with edgert.Pipeline(path) as pipeline:
        pipeline.start()
        yield pipeline


def posted(url: str, body: bytes, method: str = "POST", **headers: str) -> tuple[int, bytes]:
    given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.connect()
    connection.sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 14)  # a server that closes too early meets it still writing
    connection.request(method, "/control", body, {name: value for name, value in given.items() if value})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_same_operations_with_the_same_errors(belt: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="edgert.control")
    url = address(belt)
    both = send_to_page(url, Request("set", ("stages.draw.draw=[stats]", "stages.cam.fps=20")), TOKEN)["changes"]
    assert [(one["key"], one["now"]) for one in both] == [("stages.draw.draw", ["stats"]), ("stages.cam.fps", 20.0)]
    text = "set stages.draw.draw stages.cam.fps, by address 127.0.0.1: ['boxes'] -> ['stats'], 30.0 -> 20.0"
    assert text in caplog.text and caplog.records[-1].code == "control.done"  # type: ignore[attr-defined]
    with pytest.raises(StageError, match="unknown source 'yard'"):
        send_to_page(url, Request("remove", ("yard",)), TOKEN)
    assert "remove yard, by address 127.0.0.1: refused: unknown source 'yard'" in caplog.text
    assert caplog.records[-1].code == "control.refused"  # type: ignore[attr-defined]
    text = TEXT.replace("TOKEN", TOKEN)
    plan = send_to_page(url, Request("apply", (text,)), TOKEN)
    assert send_to_page(url, Request("apply", (text,), {"plan": plan["plan"]}), TOKEN)["applied"]
    assert "apply, by address 127.0.0.1: planned" in caplog.text
    assert f"apply --plan={plan['plan']}, by address 127.0.0.1: done" in caplog.text
    assert TOKEN not in caplog.text and TOKEN not in json.dumps(plan)
    assert send_to_page(url, Request("show"), TOKEN)["live"]["stages.draw.draw"] == ["boxes"]


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (Request("set", ("stages.cam.source=rtsp://me:sesame@10.0.0.9/x",)), "set stages.cam.source, by"),
        (Request("set", ("stages.page.tokne=sesame-sesame-sesame",)), "set stages.page.tokne, by"),
        (Request("set", ("stages.draw.draw=[stats]\nforged: line",)), "set stages.draw.draw, by"),
        (Request("set", ("stages.cam.fps=9", "stages.page.token=sesame")), "set stages.cam.fps stages.page.token, by"),
        (Request("set", ("stages.draw.draw=" + 5000 * "x",)), "set stages.draw.draw, by"),
        (Request("set", ("\n".join(("stages.draw.drow", "forged")) + "=1",)), "set stages.draw.drow forged, by"),
        (Request("add", ("rtsp://me:sesame@10.0.0.9/x", "gate")), "add rtsp://***@10.0.0.9/x gate, by"),
        (Request("pause", ("rtsp://me:sesame@10.0.0.9/x",)), "pause rtsp://***@10.0.0.9/x, by"),
    ],
)
def test_the_log_of_an_operation_is_one_line_without_secrets(
    belt: Pipeline, caplog: pytest.LogCaptureFixture, request_: Request, line: str
) -> None:
    caplog.set_level(logging.INFO, logger="edgert.control")
    with pytest.raises(EdgertError):
        belt.control.perform(request_, "user 0")
    (logged,) = (record.getMessage() for record in caplog.records if record.name == "edgert.control.operations")
    assert logged.startswith(line) and "sesame" not in logged and "\n" not in logged and len(logged) < 700


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b'{"verb": "show"}', {"Authorization": ""}, 401, b"needs its token"),
        (b'{"verb": "show"}', {"Authorization": "Bearer wrong-token-12345"}, 401, b"needs its token"),
        (b'{"verb": "show"}', {"Authorization": "Basic eDphLXRva2VuLW9mLWEtcGFnZS0xMjM0"}, 403, b"Bearer"),
        (b'{"verb": "show"}', {"Content_Type": "text/plain"}, 415, b"application/json"),
        (b'{"verb": "show"}', {"method": "GET"}, 415, b"POST"),
        (b'{"verb": "show"}', {"Content_Type": "Application/JSON; charset=utf-8"}, 200, b"streams"),
        (b'{"verb": "show"}', {"method": "PUT"}, 501, b"read only"),
        (b'{"verb": "show"}', {"Host": "evil.example"}, 403, b"Host"),
        (b'{"verb": "sho"}', {}, 400, b"did you mean 'show'"),
        (b"[1]", {}, 400, b"this line is not a request"),
        (b"", {}, 400, b"this line is not a request"),
        (b" " * (limits.CONTROL_LINE_BYTES + 1), {}, 413, b"at most"),
        (b" " * (3 * limits.CONTROL_LINE_BYTES), {}, 413, b"at most"),
    ],
)
def test_what_is_no_request_of_a_client_with_the_token_is_refused(
    belt: Pipeline, body: bytes, headers: dict[str, Any], status: int, words: bytes
) -> None:
    before = belt.file
    answer = posted(address(belt), body, **headers)
    assert answer[0] == status and words in answer[1]
    assert belt.file is before


def test_a_page_without_a_token_takes_no_changes(tmp_path: Path) -> None:
    path = tmp_path / "open.yaml"
    path.write_text(TEXT.replace(", token: TOKEN", ""))
    with edgert.Pipeline(path) as pipeline:
        pipeline.start()
        assert posted(address(pipeline), b'{"verb": "show"}')[0] == 403
        with pytest.raises(DeviceError, match="accepts no changes"):
            send_to_page(address(pipeline), Request("show"), TOKEN)


def test_the_page_forgets_what_was_replaced_and_removed() -> None:
    """No new frame comes that would take the place of what is shown."""
    stages: dict[str, Any] = {
        "cam": {"source": "api"},
        "yard": {"source": "api"},
        "find": {"infer": "parts", "from": ["cam", "yard"]},
        "areas": {"stage": "zones", "from": "find", "zones": LEFT},
        "page": {"sink": "http", "from": "areas", "port": 0},
    }
    with edgert.Pipeline({"models": {"parts": MODEL}, "stages": stages}) as pipeline:
        pipeline.start()
        url = address(pipeline)

        def shown(stream: str) -> Any:
            return json.loads(urlopen(f"{url}/stats.json?stream={stream}").read())

        for stream in ("cam", "yard"):
            pipeline.submit(np.zeros((48, 64, 3), np.uint8), stage=stream)
        wait_until(lambda: sorted(shown("cam")["streams"]) == ["cam", "yard"])
        wait_until(lambda: [one["name"] for one in shown("cam")["latest"]["places"]] == ["left"])
        stages["areas"]["zones"] = {"right": [[0.5, 0], [1, 0], [1, 1]]}
        wanted = {"models": {"parts": MODEL}, "stages": stages}
        pipeline.control.apply(wanted, pipeline.control.apply(wanted)["plan"])
        wait_until(lambda: not shown("cam")["latest"]["places"])
        pipeline.submit(np.zeros((48, 64, 3), np.uint8), stage="cam")
        wait_until(lambda: [one["name"] for one in shown("cam")["latest"]["places"]] == ["right"])
        pipeline.control.remove("yard")
        wait_until(lambda: sorted(shown("cam")["streams"]) == ["cam"])


def test_many_at_once_are_answered_one_after_the_other_or_asked_to_wait(belt: Pipeline) -> None:
    url = address(belt)
    with ThreadPoolExecutor(40) as clients:
        bodies = [Request("set", (f"stages.draw.width={20 + number}",)).line() for number in range(40)]
        answers = list(clients.map(lambda body: posted(url, body), bodies))
    assert {status for status, _ in answers} <= {200, 503} and sum(status == 200 for status, _ in answers) >= 16


def test_the_command_takes_the_token_from_the_environment_or_a_file(belt: Pipeline, tmp_path: Path) -> None:
    url, file = address(belt), tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    shown = in_process("ctl", "show", "--url", url, cwd=tmp_path, env={"EDGERT_TOKEN": TOKEN})
    assert shown.returncode == 0 and "cam: running" in shown.stdout
    changed = in_process(
        "ctl", "set", "stages.draw.draw=[stats]", "--url", url, "--token-file", str(file), cwd=tmp_path
    )
    assert changed.stdout == 'stages.draw.draw: ["boxes"] -> ["stats"]\n', changed.stderr
    refused = in_process("ctl", "show", "--url", url, cwd=tmp_path, env={"EDGERT_TOKEN": "wrong-token-12345"})
    assert refused.returncode == 1 and "accepts no changes" in refused.stderr
    for wrong, token in ((url, ""), ("board:8080", TOKEN)):
        with pytest.raises(ConfigError):
            send_to_page(wrong, Request("show"), token)
    with pytest.raises(DeviceError, match="does not answer"):
        send_to_page("http://127.0.0.1:1", Request("show"), TOKEN)


def test_a_window_of_the_run_comes_through_the_page_and_no_change_waits_for_it(
    belt: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = address(belt)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send_to_page, url, Request("trace", ("1s",)), TOKEN)
        wait_until(lambda: belt._running.tracing.recorder is not None)
        with pytest.raises(StageError, match="a trace is under way"):
            send_to_page(url, Request("trace", ("1s",)), TOKEN)
        assert send_to_page(url, Request("pause", ("cam",)), TOKEN)["state"] == "paused" and not sent.done()
        assert sent.result(20)["events"]
    monkeypatch.setenv("EDGERT_TOKEN", TOKEN)
    done = in_process("ctl", "trace", "200ms", "-o", "run.json", "--url", url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (("show",), {}),
        (("show",), None),
        (("show",), {"name": "a", "file": "b", "sources": [], "stages": {}, "swaps": {}, "live": {}}),
        (("set", "a.b=1"), {"key": "a.b"}),
        (("apply", "belt.yaml"), {"possible": True}),
        (("pause", "cam"), 5),
    ],
)
def test_an_answer_of_something_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], result: object
) -> None:
    (tmp_path / "belt.yaml").write_text(TEXT)
    monkeypatch.setattr(client, "send_to_page", lambda *_: result)
    done = in_process("ctl", *words, "--url", "http://board:80", cwd=tmp_path, env={"EDGERT_TOKEN": TOKEN})
    assert done.returncode == 1 and "http://board:80 does not answer like a pipeline of edgert" in done.stderr
