"""A YAML language server completes and checks a pipeline file by its schema, as editors do."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgert.config.pipeline_file import SCHEMA_ID, json_schema

SERVER = shutil.which("yaml-language-server") or os.environ.get("EDGERT_YAML_SERVER", "")
HEAD = "models:\n  parts:\n    onnx: parts.onnx\n    task: {detect: yolox}\n"
PLACES = {
    "name: gate\nm": {"models", "stages", "budgets"},
    "budgets:\n  ": {"power", "memory", "latency"},
    "budgets:\n  when_exceeded: ": {"warn", "stop", "degrade"},
    "models:\n  parts:\n    ": {"onnx", "task", "input", "precision", "calibrate"},
    "models:\n  parts:\n    precision: ": {"fp16", "int8"},
    "models:\n  parts:\n    input:\n      ": {"resize", "color", "mean", "std", "size"},
    "models:\n  parts:\n    input:\n      resize: ": {"letterbox", "stretch"},
    "models:\n  parts:\n    calibrate:\n      ": {"images", "method"},
    f"{HEAD}stages:\n  camera:\n    source: a.mp4\n    ": {"fps", "size", "limit"},
    f"{HEAD}stages:\n  out:\n    sink: ": {"jsonl", "video", "mqtt", "http"},
    f"{HEAD}stages:\n  track:\n    track: ": {"bytetrack", "botsort"},
    f"{HEAD}stages:\n  out:\n    sink: video\n    path: a.mp4\n    keep:\n      ": {"age", "size", "free"},
}
"""Text up to the cursor → some of what is proposed there."""


class Server:
    """A language server over its standard streams: https://microsoft.github.io/language-server-protocol."""

    def __init__(self, schema: Path) -> None:
        self._process = subprocess.Popen([SERVER, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number, self._schema = 0, schema
        self.diagnostics: dict[str, list[Any]] = {}
        self.ask("initialize", processId=None, rootUri=None, capabilities={})
        self._tell("initialized")

    def ask(self, method: str, **parameters: Any) -> Any:
        """Return the answer to a request; what the server asks meanwhile is answered."""
        self._number += 1
        number = self._number
        self._send({"id": number, "method": method, "params": parameters})
        while True:
            message = self._receive()
            if message.get("id") == number and "method" not in message:
                assert "error" not in message, message["error"]
                return message.get("result")

    def open(self, name: str, text: str) -> None:
        document = {"uri": f"file:///{name}", "languageId": "yaml", "version": 1, "text": text}
        self._tell("textDocument/didOpen", textDocument=document)

    def mistakes(self, name: str) -> list[Any]:
        while f"file:///{name}" not in self.diagnostics:
            self._receive()
        return self.diagnostics[f"file:///{name}"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _tell(self, method: str, **parameters: Any) -> None:
        self._send({"method": method, "params": parameters})

    def _send(self, message: dict[str, Any]) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        size = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        message = json.loads(self._process.stdout.read(size))
        if message.get("method") == "textDocument/publishDiagnostics":
            self.diagnostics[message["params"]["uri"]] = message["params"]["diagnostics"]
        elif "method" in message and "id" in message:
            settings = {"schemas": {self._schema.as_uri(): "*.yaml"}, "validate": True, "completion": True}
            asked = message["params"].get("items", []) if isinstance(message.get("params"), dict) else []
            result = [settings if item.get("section") == "yaml" else None for item in asked]
            self._send({"id": message["id"], "result": result if asked else None})
        return message


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if not SERVER:
        pytest.skip("no yaml-language-server here: npm install -g yaml-language-server")
    schema = tmp_path / "edgert.schema.json"
    schema.write_text(json.dumps(json_schema()))
    opened = Server(schema)
    yield opened
    opened.close()


@pytest.mark.timeout(60)
def test_twelve_places_are_completed(server: Server) -> None:
    for number, (text, wanted) in enumerate(PLACES.items()):
        server.open(f"p{number}.yaml", text)
        *above, last = text.split("\n")
        document, cursor = {"uri": f"file:///p{number}.yaml"}, {"line": len(above), "character": len(last)}
        items: list[Any] = []
        while not items:  # until the schema is read, nothing is proposed
            found = server.ask("textDocument/completion", textDocument=document, position=cursor)
            items = found["items"] if isinstance(found, dict) else found or []
        assert wanted <= {item["label"] for item in items}, text


@pytest.mark.timeout(60)
def test_a_mistake_is_marked_in_its_line(server: Server) -> None:
    server.open("wrong.yaml", f"{HEAD}stages:\n  camera: {{source: a.mp4, fsp: 3}}\n")
    assert [one["range"]["start"]["line"] for one in server.mistakes("wrong.yaml")] == [5]


def test_every_key_has_a_meaning_and_the_schema_an_address() -> None:
    schema, silent = json_schema(), list[str]()

    def walk(part: Any, place: str) -> None:
        if isinstance(part, dict):
            keys = part.get("properties", {})
            silent.extend(f"{place}.{name}" for name, key in keys.items() if not {"description", "$ref"} & key.keys())
            for name, inner in part.items():
                walk(inner, f"{place}.{name}")
        elif isinstance(part, list):
            for inner in part:
                walk(inner, place)

    walk(schema, "")
    assert silent == [] and schema["$id"] == SCHEMA_ID
