"""Every kind of input from outside: its seeds, how it is mutated, and the verbs that take it.

A case is a format, a seed and a number, and nothing else: the same three give the same bytes on every machine.

Trees and messages are changed by their structure, with the words of their schemas, and not by what a coverage-guided
fuzzer such as Atheris learns: changed as bytes, most YAML and protobuf ends in others' parsers, and a case that goes
through all verbs takes a tenth of a second, a thousand times what such a fuzzer needs to learn from.
"""

import hashlib
import io
import json
import re
import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import onnx
import yaml
from rich.console import Console
from typer.main import get_command

from edgert.bundle.manifest import NAME
from edgert.cli import app, exhaustion_error, machine_commands, top_view
from edgert.config import json_schema
from edgert.control import client
from edgert.dataset.coco_file import read_annotations
from edgert.dataset.labeled import class_numbers
from edgert.errors import EdgertError
from edgert.installation import data_folder
from edgert.planner.simulation import Scenario, simulate
from edgert.quantization.lowering.trt_form import parse_cache
from edgert.recording.cdr import DamagedMessage, decode, encode
from edgert.recording.definitions import COMPRESSED_IMAGE, DETECTIONS, IMAGE
from edgert.remote.link import read_line
from edgert.stages.ros2.zenoh_session import Attachment, read_attachment
from edgert.stages.sink.web.http_sink import HttpSink
from edgert.zip_archive import member_of, pack
from tests.faults.fuzz import mutate, recordings, seeds, stores
from tests.helpers.http_request import live_page
from tests.helpers.ros_messages import random_message

STEERING = frozenset("\x1b\x9b\0\x07\x08\x7f")
"""None of these is ever printed: a terminal obeys them."""
LONGEST_MESSAGE = 20_000
"""Characters of an error: it may name each of many mistakes, and no more than a screen of each."""
Data = tuple[bytes, ...]


@dataclass(frozen=True)
class Format:
    """A kind of input: its seeds, one of them changed, and the verbs that take it, which must not raise."""

    made: Callable[[], Data]
    mutated: Callable[[Random, bytes], bytes]
    tried: Callable[[bytes], bool]


def _messages() -> Data:
    """Return ROS 2 messages and attachments: each begins with a digit, its type's place, 3 for attachments."""
    rng = Random(7)
    made = [b"".join(encode(kind, random_message(kind, rng))) for kind in _MESSAGES for _ in range(4)]
    messages = [b"%d" % (number // 4) + data for number, data in enumerate(made)]
    return (*messages, b"3" + Attachment(5, 10**18, bytes(16)).to_bytes())


_MESSAGES = (IMAGE, COMPRESSED_IMAGE, DETECTIONS)


def _tried_message(content: bytes) -> bool:
    number, data = int(content[:1] or b"0") if content[:1].isdigit() else 0, content[1:]
    if number >= len(_MESSAGES):
        return read_attachment(data) is not None
    try:
        decode(_MESSAGES[number], data)
    except DamagedMessage:
        return False
    return True


def verbs(content: bytes, file: str, commands: Sequence[str]) -> bool:
    """Whether a command takes a file of this content. Every one is tried."""
    path = Path(file)
    path.write_bytes(content)
    taken = [_taken(command.split()) for command in commands]
    return any(taken)


def _taken(arguments: Sequence[str]) -> bool:
    out, message, code = io.StringIO(), "", 0
    with redirect_stdout(out), redirect_stderr(out):
        try:
            command().main(list(arguments), "edgert")
        except EdgertError as error:
            message = str(error)
        except (MemoryError, RuntimeError) as error:  # as the command says it
            said = exhaustion_error(error)
            if said is None:
                raise
            message = str(said)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    if set(out.getvalue() + message) & STEERING:
        raise AssertionError(f"{arguments[0]} prints what steers a terminal")
    if len(message) > LONGEST_MESSAGE:
        raise AssertionError(f"an error of {arguments[0]} has {len(message)} characters")
    return code in (0, 1) and not message


@cache
def command() -> Any:
    """Once: typer takes longer to make its commands from their functions than most of them run."""
    return get_command(app)


# Pipeline files: trees with keys of the schema.


@cache
def _words() -> tuple[str, ...]:
    return tuple(sorted(set(re.findall(r'"([a-z_]{2,24})":', json.dumps(json_schema())))))


def _mutated_yaml(words: Callable[[], Sequence[str]], rng: Random, data: bytes) -> bytes:
    if rng.random() < 0.25:
        return mutate.mutated_bytes(rng, data)
    tree = mutate.mutated_tree(rng, _parsed(data), words())
    return mutate.yaml_text(tree)


@cache
def _parsed(data: bytes) -> Any:
    return yaml.safe_load(data)


# Models: fields of the protobuf message, and bits.


def _mutated_onnx(rng: Random, data: bytes) -> bytes:
    if rng.random() < 0.2:
        return mutate.mutated_bytes(rng, data)
    model = onnx.ModelProto.FromString(data)
    mutate.mutate_message(rng, model)
    return bytes(model.SerializeToString())


_MODEL = "f.yaml --set models.m.onnx=x.onnx"
_ONNX = (
    "inspect x.onnx",
    "inspect x.onnx --dla --board orin-nx-16gb --explain",
    f"validate {_MODEL}",
    f"plan {_MODEL} --board orin-nx-16gb --mode 15W",
    "calibrate p.yaml --set models.m.onnx=x.onnx -o out/r.json --limit 8",
    f'build {_MODEL} --set models.m.backend="null" -o out/n.edgert',
    f"export {_MODEL} --format onnx -o out/e",
    f"run {_MODEL} --plain --duration 5",
)
_INT8 = "quantize p.yaml --set models.m.onnx=x.onnx -o out/q.onnx --limit 8"


def _tried_model(content: bytes) -> bool:
    """By one verb after the other; one of four made INT8, which takes as long as all the others."""
    return verbs(content, "x.onnx", (*_ONNX, *([_INT8] if _one_of_four(content) else [])))


def _one_of_four(content: bytes) -> bool:
    return zlib.crc32(content) % 4 == 0


# Bundles: a member edited, and every digest made anew.


def packed(members: Mapping[str, bytes], manifest: Any) -> bytes:
    """A bundle whose digests are true, whatever is in it."""
    if isinstance(manifest, dict):
        listed = manifest.get("members")
        for path in listed if isinstance(listed, dict) else ():
            if path in members and isinstance(listed[path], dict):
                one = member_of(members[path])
                listed[path] |= {"size_bytes": one.size_bytes, "sha256": one.sha256}
        manifest = {key: one for key, one in manifest.items() if key != "digest"}
        manifest["digest"] = hashlib.sha256(_text(manifest)).hexdigest()
    file = io.BytesIO()
    pack({**members, NAME: _text(manifest)}, file, NAME)
    return file.getvalue()


def _text(content: Any) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode("ascii")


def _mutated_bundle(rng: Random, data: bytes) -> bytes:
    members = seeds.members(data)
    manifest = json.loads(members.pop(NAME))
    name = rng.choice((NAME, *(name for name in members if not name.endswith((".png", "model.onnx")))))
    if name == NAME:
        manifest = mutate.mutated_tree(rng, manifest, ("placement", "quality", "tune", "cache", "ort", "dla", "fp16"))
    elif name.endswith(".json"):
        members[name] = mutate.mutated_json(rng, members[name])
    elif name.endswith(".yaml"):
        members[name] = _mutated_yaml(_words, rng, members[name])
    elif name.endswith(".onnx"):
        members[name] = _mutated_onnx(rng, members[name])
    else:
        members[name] = mutate.mutated_bytes(rng, members[name])
    return packed(members, manifest)


_BUNDLE = (
    "inspect b.edgert",
    "run b.edgert --dry-run",
    "build b.edgert",
    "export b.edgert --format trtexec -o out/t",
    "export b.edgert --format triton -o out/r",
    "export b.edgert --format onnx -o out/o",
    "plan p.yaml --board orin-nx-16gb --mode 15W --profile b.edgert",
    "bench b.edgert --share out/s.json",
)


# Board files, which are called what they say.


def _boards() -> Data:
    folder = data_folder("configs") / "boards"
    return tuple((folder / f"{name}.yaml").read_bytes() for name in ("orin-nx-16gb", "jetson-nano-4gb", "thor-t5000"))


def _tried_board(content: bytes) -> bool:
    found = re.search(rb"^name: *([a-z0-9-]{1,40})", content, re.MULTILINE)
    file = f"{found[1].decode() if found else 'x'}.yaml"
    try:
        return verbs(content, file, (f"boards ./{file}", f"plan p.yaml --board ./{file}"))
    finally:
        Path(file).unlink()


# Requests to the page, and messages between processes.

_REQUESTS = tuple(
    f"{verb} {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n\r\n".encode()
    for verb, path, more in (
        ("GET", "/", "Accept: */*"),
        ("GET", "/metrics?x=1", "Connection: close"),
        ("HEAD", "/stats.json", "Content-Length: 4"),
        ("GET", "http://localhost/healthz", "Range: bytes=0-1"),
        ("POST", "/snapshot.jpg", "Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0"),
    )
)


@cache
def _page() -> HttpSink:
    sink = live_page(lambda: {"fps": 1.0, "stages": {}})
    sink.open()
    return sink


def stop_server() -> None:
    if _page.cache_info().currsize:
        _page().close()
        _page.cache_clear()


def _tried_request(content: bytes) -> bool:
    if b"snapshot" in content:  # it waits two seconds for an image
        content = content.replace(b"snapshot", b"snap")
    port = urlsplit(_page().url).port
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while more := client.recv(1 << 16):
            answer += more
    if b" 500 " in answer[:40]:
        raise AssertionError(answer)
    return b" 200 " in answer[:40]


def _tried_state(content: bytes) -> bool:
    """As the answer of a pipeline, twice, and as a line of a board's."""
    read_line(content)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.sendall(content[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        found = client.RunningPipeline("k", 1, client._read_state(ours))
    looks, real = machine_commands.Pipelines(), client.running_pipelines
    try:
        client.running_pipelines = lambda: (found,)  # type: ignore[assignment]
        rows = (looks.read(), looks.read())[1]
    finally:
        client.running_pipelines = real
    out = io.StringIO()
    Console(file=out, width=120).print(top_view.row_table(rows, 120, "pipelines"))
    json.dumps(rows)
    if "\x1b" in out.getvalue():
        raise AssertionError("what steers a terminal is shown")
    return isinstance(found.state, dict)


def _tried_annotations(content: bytes) -> bool:
    path = Path("photos.json")
    path.write_bytes(content)
    try:
        class_numbers(read_annotations(path), ("a", "b"), path)
    except EdgertError:
        return False
    return True


def _tried_cache(content: bytes) -> bool:
    try:
        parse_cache(content.decode("utf-8", "replace"))
    except EdgertError:
        return False
    return True


def _digested(content: bytes) -> bytes:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if isinstance(found, dict):
        plain = {key: one for key, one in found.items() if key != "digest"}
        found["digest"] = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return json.dumps(found).encode()


_PLAN = "plan p.yaml --board {} --set models.m.precision=fp32 --profile profile.json"
_YAML = ("validate y.yaml", "run y.yaml --dry-run")


def _tried_pipeline(content: bytes) -> bool:
    """One of four is planned, too, which takes ten times as long."""
    more = ["plan y.yaml --board jetson-nano-4gb --mode MAXN"] if _one_of_four(content) else []
    return verbs(content, "y.yaml", (*_YAML, *more))


def _tried_scenario(name: str, content: bytes) -> bool:
    path = Path("scenario.json")
    path.write_bytes(content)
    scenario, keys = Scenario(0.2, **{name: path}), ["models.m.precision=fp32"]
    try:
        simulate("p.yaml", board="orin-nx-16gb", mode="15W", scenario=scenario, overrides=keys)
    except EdgertError:
        return False
    return True


_JSON = mutate.mutated_json

FORMATS: Mapping[str, Format] = {
    "yaml": Format(
        lambda: tuple(text.encode() for text in seeds.PIPELINES), partial(_mutated_yaml, _words), _tried_pipeline
    ),
    "onnx": Format(lambda: tuple(seeds.models().values()), _mutated_onnx, _tried_model),
    "bundle": Format(lambda: (seeds.bundle(),), _mutated_bundle, lambda content: verbs(content, "b.edgert", _BUNDLE)),
    "ros2": Format(_messages, mutate.mutated_bytes, _tried_message),
    "container": Format(
        lambda: (seeds.bundle(),),
        mutate.mutated_bytes,
        lambda content: verbs(content, "b.edgert", ("inspect b.edgert",)),
    ),
    "ranges": Format(
        lambda: (seeds.ranges(),),
        _JSON,
        lambda content: verbs(content, "r.json", ("quantize p.yaml --ranges r.json -o out/q.onnx --limit 8",)),
    ),
    "cache": Format(
        lambda: (seeds.members(seeds.bundle())["models/m/calibration.cache"],), mutate.mutated_bytes, _tried_cache
    ),
    "profile": Format(
        lambda: (seeds.profile(),), _JSON, lambda content: verbs(content, "profile.json", (_PLAN.format("host"),))
    ),
    "shared": Format(
        lambda: (seeds.shared_profile(),),
        lambda rng, data: _digested(_JSON(rng, data)),
        lambda content: verbs(content, "profile.json", ("bench profile.json", _PLAN.format("orin-nx-16gb"))),
    ),
    "board": Format(_boards, partial(_mutated_yaml, lambda: ("gpu", "dla", "modes", "memory")), _tried_board),
    "summary": Format(lambda: (seeds.summary(),), _JSON, partial(_tried_scenario, "stages")),
    "trace": Format(lambda: (seeds.trace(),), mutate.mutated_lines, partial(_tried_scenario, "trace")),
    "labels": Format(lambda: (seeds.annotations(),), _JSON, _tried_annotations),
    "gallery": Format(stores.galleries, stores.mutated_gallery, stores.tried_gallery),
    "spool": Format(lambda: (stores.spool(),), stores.mutated, stores.tried_spool),
    "answer": Format(lambda: stores.ANSWERS, mutate.mutated_bytes, stores.tried_answer),
    "http": Format(lambda: _REQUESTS, mutate.mutated_bytes, _tried_request),
    "state": Format(lambda: (seeds.state(),), _JSON, _tried_state),
    "mcap": Format(recordings.recordings, recordings.mutated_recording, recordings.tried_recording),
}


def case(name: str, data: Data, seed: int, number: int) -> bytes:
    rng = Random(f"{name}/{seed}/{number}")
    return FORMATS[name].mutated(rng, rng.choice(data))
