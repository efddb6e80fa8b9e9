"""MCAP files (https://mcap.dev/spec, version 0): writer and reader.

Chunks are not compressed, because most of their bytes are compressed video or images. Each repeats the channels that it
uses, so that it can be read alone. The reader skips damaged chunks, bounds every length by the file's size, and
allocates one chunk at a time.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from edgert.errors import ArtifactError, raised_as

MAGIC = b"\x89MCAP0\r\n"
_HEADER, _FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _INDEX, _CHUNK_INDEX = range(1, 9)
_STATISTICS, _DATA_END = 0x0B, 0x0F
_MOST_BYTES = 1 << 30
"""Longest chunk that is read; a longer one counts as damage."""
_U32 = 0xFFFFFFFF
_RECORD = struct.Struct("<BQ")
_MESSAGE_HEAD = struct.Struct("<HIQQ")


class Message(NamedTuple):
    """One message.

    Attributes:
        sequence: number that the writer gave it.
        log_ns, publish_ns: time of recording, and of capture, in ns since 1970.
        data: payload, a view of the chunk.
    """

    topic: str
    sequence: int
    log_ns: int
    publish_ns: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Topic:
    """Channel with the schema of its messages.

    Attributes:
        is_cdr: whether messages are CDR with a ROS 2 schema, not JSON with a JSON schema.
    """

    name: str
    schema: str
    text: bytes
    is_cdr: bool = False


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(data)) + data


def _record(opcode: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return _RECORD.pack(opcode, len(content)) + content


@dataclass
class _Chunk:
    """Open chunk: records that were added since the last one was closed."""

    parts: list[bytes | memoryview] = field(default_factory=list)
    nbytes: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    index: dict[int, list[int]] = field(default_factory=dict)

    def add(self, *parts: bytes | memoryview) -> None:
        for part in parts:
            self.parts.append(part)
            self.nbytes += len(part)


class McapWriter:
    """Encoder of one file. It returns the bytes to write, in order, and writes nothing itself."""

    def __init__(self, library: str) -> None:
        self._library, self._at = library, 0
        self._numbers: dict[Topic, int] = {}
        self._chunk = _Chunk()
        self._counts: dict[int, int] = {}
        self._indexes = list[bytes]()
        self._span = (0, 0)

    @property
    def waiting_bytes(self) -> int:
        """Size of the open chunk."""
        return self._chunk.nbytes

    def begin(self) -> bytes:
        """Return the magic and header of the file."""
        head = MAGIC + _record(_HEADER, _text(""), _text(self._library))
        self._at += len(head)
        return head

    def add(
        self, topic: Topic, log_ns: int, publish_ns: int, *data: bytes | memoryview, sequence: int | None = None
    ) -> None:
        """Add a message to the open chunk.

        Args:
            topic: topic of its channel.
            log_ns: time of recording in ns since 1970.
            publish_ns: time of capture in ns since 1970.
            data: consecutive parts of the payload, which must not change before the chunk is closed.
            sequence: number of the message; by default messages of the topic are counted.
        """
        number = self._numbers.get(topic)
        if number is None:
            number = self._numbers[topic] = len(self._numbers) + 1
        chunk = self._chunk
        if number not in chunk.index:
            chunk.index[number] = []
            chunk.add(self._described(topic, number))
        chunk.begin_ns = min(chunk.begin_ns, log_ns) if chunk.begin_ns else log_ns
        chunk.end_ns = max(chunk.end_ns, log_ns)
        chunk.index[number] += (log_ns, chunk.nbytes)
        count = self._counts[number] = self._counts.get(number, 0) + 1
        nbytes = _MESSAGE_HEAD.size + sum(map(len, data))
        head = _RECORD.pack(_MESSAGE, nbytes) + _MESSAGE_HEAD.pack(
            number, (count if sequence is None else sequence) & _U32, log_ns, publish_ns
        )
        chunk.add(head, *data)

    def close_chunk(self) -> bytes:
        """Return the open chunk with its index, or no bytes if it is empty; begin the next chunk."""
        chunk, self._chunk = self._chunk, _Chunk()
        if not chunk.index:
            return b""
        records = b"".join(chunk.parts)
        times = struct.pack("<QQ", chunk.begin_ns, chunk.end_ns)
        about = times + struct.pack("<QI", len(records), zlib.crc32(records)) + _text("")
        head = _RECORD.pack(_CHUNK, len(about) + 8 + len(records)) + about + struct.pack("<Q", len(records))
        length, offsets, indexes = len(head) + len(records), list[bytes](), list[bytes]()
        for number, pairs in chunk.index.items():
            offsets.append(struct.pack("<HQ", number, self._at + length + sum(map(len, indexes))))
            packed = struct.pack(f"<{len(pairs)}Q", *pairs)
            indexes.append(_record(_INDEX, struct.pack("<H", number), _text(packed)))
        index = b"".join(indexes)
        where = struct.pack("<QQ", self._at, length) + _text(b"".join(offsets)) + struct.pack("<Q", len(index))
        sizes = struct.pack("<QQ", len(records), len(records))
        self._indexes.append(_record(_CHUNK_INDEX, times, where, _text(""), sizes))
        begin_ns, end_ns = self._span
        self._span = min(begin_ns, chunk.begin_ns) if begin_ns else chunk.begin_ns, max(end_ns, chunk.end_ns)
        self._at += length + len(index)
        return b"".join((head, records, index))

    def end(self) -> bytes:
        """Return the end of the file: the last chunk, and the summary with an index of all chunks."""
        last = self.close_chunk()
        data_end = _record(_DATA_END, struct.pack("<I", 0))
        summary_at = self._at + len(data_end)
        topics = [self._described(topic, number) for topic, number in self._numbers.items()]
        counts = b"".join(struct.pack("<HQ", number, count) for number, count in self._counts.items())
        numbers = struct.pack(
            "<QHIIIIQQ", sum(self._counts.values()), len(topics), len(topics), 0, 0, len(self._indexes), *self._span
        )
        summary = b"".join((*topics, *self._indexes, _record(_STATISTICS, numbers, _text(counts))))
        footer = _record(_FOOTER, struct.pack("<QQI", summary_at, 0, 0))
        return b"".join((last, data_end, summary, footer, MAGIC))

    def _described(self, topic: Topic, number: int) -> bytes:
        """Return the records of a topic's schema and channel, which share their number."""
        schema, message = ("ros2msg", "cdr") if topic.is_cdr else ("jsonschema", "json")
        first = _record(_SCHEMA, struct.pack("<H", number), _text(topic.schema), _text(schema), _text(topic.text))
        parts = struct.pack("<HH", number, number), _text(topic.name), _text(message), _text(b"")
        return first + _record(_CHANNEL, *parts)


# Reading.


@dataclass(slots=True)
class Damage:
    """Parts of a file that could not be read.

    Attributes:
        nbytes: bytes at the end without a complete chunk.
        chunks: number of damaged chunks, which were skipped.
        is_cut: whether the file has no end, because its writer was killed.
        last_ns: time of the last message that was read, in ns since 1970.
    """

    nbytes: int = 0
    chunks: int = 0
    is_cut: bool = True
    last_ns: int = 0

    def __str__(self) -> str:
        parts = [f"{self.chunks} damaged chunks were left out"] if self.chunks else []
        if self.is_cut:
            rest = f"; its last {self.nbytes} bytes are no whole chunk, at most 1 s of the run" if self.nbytes else ""
            parts.append(f"it has no end{rest}")
        return "; ".join(parts)


def read_messages(path: Path, damage: Damage, topics: frozenset[str] = frozenset()) -> Iterator[Message]:
    """Yield the messages of all valid chunks of a file, in the order in which they were written.

    Args:
        path: path of the file.
        damage: record that is updated with the parts that cannot be read.
        topics: topics of the messages to yield; empty for all.

    Raises:
        ArtifactError: the file cannot be opened, is not MCAP, or has compressed chunks.
    """
    with raised_as(ArtifactError, f"cannot read {path}"), path.open("rb") as file:
        yield from _messages(file, path, damage, topics)


def _messages(file: BinaryIO, path: Path, damage: Damage, topics: frozenset[str]) -> Iterator[Message]:
    size = file.seek(0, 2)
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        why = "it is empty" if not size else "it does not begin like one"
        raise ArtifactError(f"{path} is not an MCAP file", why=why, fix="use a file that sink: mcap wrote")
    end = len(MAGIC)
    while True:
        head = file.read(_RECORD.size)
        if len(head) < _RECORD.size:
            break
        opcode, length = _RECORD.unpack(head)
        begin = end + _RECORD.size
        if length > min(size - begin, _MOST_BYTES):
            break
        if opcode in (_DATA_END, _FOOTER):
            damage.is_cut = False
            return
        if opcode == _CHUNK:
            yield from _chunk_messages(file.read(length), path, damage, topics)
        elif opcode == 0:
            break
        else:
            file.seek(length, 1)
        end = begin + length
    damage.nbytes = size - end


def _chunk_messages(data: bytes, path: Path, damage: Damage, topics: frozenset[str]) -> Iterator[Message]:
    records = _chunk_records(data, path)
    if records is None:
        damage.chunks += 1
        return
    channels: dict[int, str] = {}
    try:
        for opcode, content in _split(records):
            if opcode == _CHANNEL:
                number, name = struct.unpack_from("<H", content)[0], _text_at(content, 4)
                channels[number] = name
            elif opcode == _MESSAGE:
                number, sequence, log_ns, publish_ns = _MESSAGE_HEAD.unpack_from(content)
                topic = channels.get(number)
                if topic is not None and (not topics or topic in topics):
                    damage.last_ns = log_ns
                    yield Message(topic, sequence, log_ns, publish_ns, content[_MESSAGE_HEAD.size :])
    except (struct.error, ValueError):
        damage.chunks += 1


def _chunk_records(data: bytes, path: Path) -> memoryview | None:
    """Return the records of a chunk; None if it is damaged. Raises ArtifactError for a compressed chunk."""
    view = memoryview(data)
    try:
        _, _, size, crc = struct.unpack_from("<QQQI", view)
        compression = _text_at(view, 28)
        at = 32 + len(compression.encode())
        length = struct.unpack_from("<Q", view, at)[0]
    except (struct.error, ValueError):
        return None
    records = view[at + 8 :]
    if compression in ("lz4", "zstd"):
        fix = "record with sink: mcap, or decompress it: mcap compress --compression none IN -o OUT"
        raise ArtifactError(f"{path} is compressed with {compression}", why="edgert reads plain chunks only", fix=fix)
    if compression or length != len(records) or size != length or (crc and zlib.crc32(records) != crc):
        return None
    return records


def _split(records: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield (opcode, content) of the records of a chunk. Raises struct.error or ValueError for a wrong length."""
    at = 0
    while at < len(records):
        opcode, length = _RECORD.unpack_from(records, at)
        at += _RECORD.size
        if length > len(records) - at:
            raise ValueError("a record goes beyond its chunk")
        yield opcode, records[at : at + length]
        at += length


def _text_at(view: memoryview, at: int) -> str:
    """Return the text at an offset. Raises struct.error or ValueError."""
    (length,) = struct.unpack_from("<I", view, at)
    if length > len(view) - at - 4:
        raise ValueError("a text goes beyond its record")
    return str(view[at + 4 : at + 4 + length], "utf-8")
