"""Recordings: damaged as bytes, inside chunks whose checksum is right again, and as JSON with other values."""

import json
import struct
import zlib
from functools import partial
from pathlib import Path
from random import Random

from edgert.errors import EdgertError
from edgert.recording.mcap_file import MAGIC
from edgert.recording.mcap_messages import RUN
from edgert.recording.recording import join_parts
from edgert.replayer.replayed import replay
from tests.faults.fuzz import mutate
from tests.helpers.recordings import record_tiny, rewritten

_CHUNK = 6
_HEAD = struct.Struct("<BQ")
_CRC_AT = 24


def recordings() -> tuple[bytes, ...]:
    """Return the bytes of a recording, and of one that begins in the middle of its run."""
    whole = record_tiny(Path.cwd())
    middle = rewritten(whole, Path("middle.mcap"), {RUN: _as_third_part})
    return whole.read_bytes(), middle.read_bytes()


def _as_third_part(payload: bytes) -> bytes:
    head = json.loads(payload)
    return json.dumps({**head, "part": 2, "settings": {task: [1, 0, 0] for task in head["tasks"]}}).encode()


def mutated_recording(rng: Random, data: bytes) -> bytes:
    way = rng.randrange(3)
    if way == 0:
        return mutate.mutated_bytes(rng, data)
    if way == 1:
        return _inside(rng, data)
    path, out = Path("seed.mcap"), Path("changed.mcap")
    path.write_bytes(data)
    topic = rng.choice(("/edgert/run", "/edgert/decisions", "/edgert/results"))
    rewritten(path, out, {topic: partial(_other_json, rng)})
    return out.read_bytes()


def _other_json(rng: Random, payload: bytes) -> bytes:
    return json.dumps(mutate.mutated_tree(rng, json.loads(payload)), ensure_ascii=True, default=str).encode()


def _inside(rng: Random, data: bytes) -> bytes:
    """Damage the records of each chunk, without a checksum that shows it."""
    made, at = bytearray(data), len(MAGIC)
    while at + _HEAD.size <= len(data):
        opcode, length = _HEAD.unpack_from(data, at)
        begin = at + _HEAD.size
        if opcode == _CHUNK and begin + length <= len(data):
            first = begin + _CRC_AT + 4 + 4 + 8  # times, size, checksum, no compression, length
            for _ in range(rng.randrange(1, 6)):
                made[rng.randrange(first, begin + length)] = rng.randrange(256)
            struct.pack_into("<I", made, begin + _CRC_AT, zlib.crc32(made[first : begin + length]))
        at = begin + length
    return bytes(made)


def tried_recording(content: bytes) -> bool:
    """Join a recording to a file as one part of it, and replay it; return whether all of it was taken."""
    path = Path("fuzzed.mcap")
    path.write_bytes(content)
    try:
        for _ in join_parts([path], "edgert of a test"):
            pass
        made = replay(path)
    except EdgertError as error:
        if len(str(error)) > 20_000:
            raise AssertionError("the error is too long") from error
        return False
    assert isinstance(made.to_json(), dict)
    return not made.different
