"""Recordings of runs, read for a replay: the head, decisions in order, camera data and results."""

import heapq
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgert.errors import ArtifactError
from edgert.recording import mcap_messages as messages
from edgert.recording.mcap_file import Damage, McapWriter, Message, read_messages
from edgert.runtime.decisions import Entry

log = logging.getLogger("edgert.recording")

FORMAT = 1
"""Version of edgert's own messages."""
_HELD = 2
"""Messages of decisions to wait for a missing number; a thread adds its entry at once."""
_KINDS = frozenset({"give", "part", "step", "submit", "collect", "fail", "drop", "settings", "replace", "file"})
_FRAME_FIELDS = 6
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Restart:
    """Data that a new decoder needs, from one piece of camera data on."""

    stream: str
    number: int
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """One packet (``video``), ``image`` or ``depth`` image of a stream, still encoded."""

    stream: str
    number: int
    kind: str
    data: memoryview


Event = Entry | Piece | Restart | dict[str, Any]
"""Item of a recording: a decision, camera data, or a recorded result."""


@dataclass
class Recording:
    """Recorded run: one file, or consecutive parts of one run.

    Attributes:
        head: head of the first file; see :func:`edgert.assemble.recording_head.recorded_about`.
        damages: damage of each file.
        files: (number of the entry at which the pipeline changed, its data from then on).
        failed: (task, stream, frame) of results on which a stage failed.
        frames: stream → number of its frames.
        span_ns: times of the first and last frame, by the recorded clock.
        lost: number of decisions and results for which the recorder had no room.
        filled: path of the first file with a frame.
    """

    paths: Sequence[Path]
    head: Mapping[str, Any]
    damages: list[Damage]
    files: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    failed: set[tuple[str, str, int]] = field(default_factory=set)
    frames: dict[str, int] = field(default_factory=dict)
    span_ns: tuple[int, int] = (0, 0)
    lost: int = 0
    filled: Path = Path()

    @property
    def settings(self) -> Mapping[str, Sequence[int]]:
        """Settings in force at the start of a recording that begins in mid-run, by task; else entries have them."""
        found = self.head.get("settings")
        rows = found.items() if isinstance(found, dict) and not self.is_complete else ()
        return {task: row for task, row in rows if isinstance(row, list) and all(type(one) is int for one in row)}

    @property
    def is_complete(self) -> bool:
        """Whether the recording begins with the run, so that stages start without a past."""
        return bool(self.head["part"] == 0)

    def events(self) -> Iterator[Event]:
        """Yield all items in order; camera data comes before the decisions about its frames.

        Raises:
            ArtifactError: a file cannot be read.
        """
        waiting, expected, held = list[Entry](), 0 if self.is_complete else -1, 0
        last = dict[str, int]()
        for message in self._messages():
            stream, _, kind = message.topic[1:].rpartition("/")
            if kind in ("video", "image", "depth"):
                if message.sequence > last.get(message.topic, -1):  # each file repeats packets of the one before
                    last[message.topic] = message.sequence
                    yield Piece(stream, message.sequence, kind, message.data)
            elif message.topic == messages.RESULTS:
                yield _parsed(message)
            elif message.topic == messages.DECISIONS:
                data = _parsed(message)
                for about in _list(data, "restarts"):
                    if isinstance(about, dict) and isinstance(about.get("number"), int):
                        yield Restart(str(about.get("stream")), about["number"], about)
                held = held + 1 if waiting else 0
                for entry in _entries(data):
                    heapq.heappush(waiting, entry)
                while waiting and (waiting[0].number <= expected or held > _HELD):
                    entry = heapq.heappop(waiting)
                    expected = max(expected, entry.number + 1)
                    yield entry
                    held = 0
        while waiting:
            yield heapq.heappop(waiting)

    def _messages(self) -> Iterator[Message]:
        for path in self.paths:
            yield from read_messages(path, Damage())


def open_recording(paths: Sequence[Path]) -> Recording:
    """Read all decisions of a recording once, and return it.

    Args:
        paths: one file, or the parts of one run in any order.

    Raises:
        ArtifactError: a file is not a recording of edgert, files belong to different runs, or no file has a frame.
    """
    damages = list[Damage]()
    heads = [head_of(path) for path in paths]
    order = sorted(range(len(heads)), key=lambda number: heads[number]["part"])
    heads, paths = [heads[number] for number in order], [paths[number] for number in order]
    if len({head["run"] for head in heads}) > 1:
        why = f"{paths[0]} and {paths[-1]} belong to two runs"
        raise ArtifactError("these files are not parts of one recording", why=why, fix="replay each alone")
    for before, after, path in zip(heads, heads[1:], paths[1:], strict=False):
        if after["part"] != before["part"] + 1:
            missing = f"part {before['part'] + 1} is missing before {path}"
            raise ArtifactError("a part of the recording is missing", why=missing, fix="name all of its files")
    found = Recording(paths, heads[0], damages)
    for path in paths:
        damages.append(Damage())
        was_empty = not found.frames
        for message in read_messages(path, damages[-1], frozenset({messages.DECISIONS})):
            _add_facts(found, _parsed(message))
        if was_empty and found.frames:
            found.filled = path
    if not found.frames:
        why = "the run ended before the first frame" if not any(map(str, damages)) else str(damages[0])
        raise ArtifactError(f"{paths[0]} has no frame to replay", why=why, fix="record a run that gives results")
    return found


def head_of(path: Path) -> dict[str, Any]:
    """Return the head of a file. Raises ArtifactError if it cannot be read, or is not a recording of edgert."""
    head = next((_parsed(one) for one in read_messages(path, Damage(), frozenset({messages.RUN}))), None)
    return _checked(head, path)


def has_frames(path: Path) -> bool:
    """Return whether a file has a decision about a new frame. Raises ArtifactError if it cannot be read."""
    found = read_messages(path, Damage(), frozenset({messages.DECISIONS}))
    return any(entry.kind == "give" for message in found for entry in _entries(_parsed(message)))


def join_parts(paths: Sequence[Path], library: str) -> Iterator[bytes]:
    """Yield the bytes of one file that holds consecutive parts of a run, about one chunk at a time.

    A part that was cut off is read up to the cut; a part that no longer exists is skipped.

    Args:
        paths: paths of the parts, in order.
        library: name of the writing program in the file's header.

    Raises:
        ArtifactError: a part cannot be read.
    """
    writer, last, has_head = McapWriter(library), dict[str, int](), False
    yield writer.begin()
    for path in filter(Path.exists, paths):
        for message in read_messages(path, Damage()):
            if (topic := messages.topic_named(message.topic)) is None:  # undetected damage
                continue
            if topic.is_cdr:
                if message.sequence <= last.get(topic.name, -1):  # each part repeats a group of packets
                    continue
                last[topic.name] = message.sequence
            if message.topic != messages.RUN or not has_head:
                writer.add(topic, message.log_ns, message.publish_ns, message.data, sequence=message.sequence)
            has_head |= message.topic == messages.RUN
            if writer.waiting_bytes > _CHUNK_BYTES:
                yield writer.close_chunk()
    yield writer.end()


def _add_facts(found: Recording, data: dict[str, Any]) -> None:
    """Add what a replay must know beforehand from one message of decisions."""
    lost = data.get("lost")
    found.lost = max(found.lost, lost if isinstance(lost, int) else 0)
    for entry in _entries(data):
        if entry.kind == "give":
            found.frames[entry.stream] = found.frames.get(entry.stream, 0) + 1
            begin_ns, end_ns = found.span_ns
            at_ns = entry.more[0]
            found.span_ns = min(begin_ns or at_ns, at_ns), max(end_ns, at_ns)
        elif entry.kind == "fail":
            found.failed.add((entry.task, entry.stream, entry.frame))
        elif entry.kind == "file" and _is_pipeline(entry.more):
            found.files.append((entry.number, entry.more))


def _checked(head: dict[str, Any] | None, path: Path) -> dict[str, Any]:
    """Return the head of a file. Raises ArtifactError if it is missing, of another version, or damaged."""
    if head is None:
        raise ArtifactError(
            f"{path} is not a recording of edgert",
            why=f"it has no message on {messages.RUN}",
            fix="replay a file of sink: mcap; a bag of ROS 2 can only be a source",
        )
    if head.get("format") != FORMAT:
        why, fix = f"its format is {head.get('format')}, and this edgert reads {FORMAT}", "use the edgert that wrote it"
        raise ArtifactError(f"{path} cannot be replayed", why=f"{why}; edgert {head.get('edgert')} wrote it", fix=fix)
    for key, is_right in _HEAD.items():
        if key not in head or not is_right(head[key]):
            raise ArtifactError(f"{path} cannot be replayed", why=f"its head has no valid {key}", fix="record again")
    return head


def _is_pipeline(value: object) -> bool:
    """Return whether data has the structure of a pipeline: stages, and perhaps models, each a mapping."""
    return isinstance(value, dict) and _maps(value.get("stages"), dict) and _maps(value.get("models") or {}, dict)


def _maps(value: object, kind: type) -> bool:
    """Return whether a value is a mapping from texts to values of one type."""
    return isinstance(value, dict) and all(type(one) is kind for one in value.values())


def _is_number(value: object) -> bool:
    """Return whether a value is an integer of at most 62 bits, so that sums of two are times that can be shown."""
    return type(value) is int and abs(value) < 1 << 62


_HEAD: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("run", "sink", "path"), lambda value: type(value) is str and value.isprintable()),
    **dict.fromkeys(("part", "offset_ns"), _is_number),
    **dict.fromkeys(("streams", "packages"), lambda value: _maps(value, str)),
    "pipeline": _is_pipeline,
    "models": lambda value: _maps(value, dict),
    "sources": lambda value: _maps(value, bool),
    "tasks": lambda value: isinstance(value, list) and all(type(one) is str for one in value),
}


def _parsed(message: Message) -> dict[str, Any]:
    """Return the data of a JSON message. Raises ArtifactError if it is not a JSON object."""
    try:
        data = json.loads(bytes(message.data))
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        what = f"a message on {message.topic} is damaged"
        raise ArtifactError(what, why="it is not a JSON object", fix="record again, or copy the file again")
    return data


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    found = data.get(key)
    return found if isinstance(found, list) else []


def _entries(data: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the decisions of a message. Raises ArtifactError for a damaged one."""
    for row in _list(data, "entries"):
        if _is_entry(row):
            yield Entry(*row)
        else:
            raise ArtifactError("a decision of the recording is damaged", why=f"{str(row)[:80]} is not one",
                                fix="record again, or copy the file again")  # fmt: skip


def _is_entry(row: object) -> bool:
    if not isinstance(row, list) or len(row) != len(Entry._fields):
        return False
    number, kind, task, stream, frame, at_ns, more = row
    names = isinstance(task, str) and isinstance(stream, str) and kind in _KINDS if isinstance(kind, str) else False
    numbers = all(map(_is_number, (number, frame, at_ns)))
    if not names or not numbers:
        return False
    if kind == "give":
        known = [*more[:2], *more[3:]] if isinstance(more, list) and len(more) == _FRAME_FIELDS else [None]
        return all(map(_is_number, known)) and (more[2] is None or _is_number(more[2]))
    if kind == "settings":
        return isinstance(more, list) and all(map(_is_number, more))
    return not (kind == "collect" and type(more) is not int)
