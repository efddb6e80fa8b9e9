"""Source of a camera's topics in a bag of ROS 2: ``bag:run1#/camera/image_raw``.

A bag is one SQLite or MCAP file, or a folder of them, and is read up to its first damage.
"""

from __future__ import annotations

import sqlite3
import struct
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgert import installation, limits
from edgert.config.fields import resolve_input
from edgert.config.stages import SourceStage
from edgert.errors import StageError, cause, nearest, raised_as
from edgert.files import exists
from edgert.runtime.stage import SourceStats
from edgert.stages.context import Context
from edgert.stages.ros2.ros_images import KINDS_OF_ROLE, CameraTopics, Incoming, Role
from edgert.stages.ros2.ros_source import options_of, topics_of
from edgert.stages.source.files import matched
from edgert.stages.source.live import FinalError
from edgert.stages.source.timeline import DEFAULT_PERIOD_NS, Image, ImageSource, MediaClock

_ZSTD = b"\x28\xb5\x2f\xfd"
_SUFFIXES = (".db3", ".mcap")
_TOPICS = "SELECT CAST(name AS TEXT), CAST(type AS TEXT) FROM topics WHERE name NOTNULL AND type NOTNULL"
_MESSAGES = """
SELECT topics.name, messages.timestamp, messages.data FROM messages JOIN topics ON messages.topic_id = topics.id
WHERE topics.name IN (?, ?, ?) AND typeof(messages.data) = 'blob' AND typeof(messages.timestamp) = 'integer'
ORDER BY messages.timestamp, messages.id
"""
_TABLES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('topics', 'messages')"


def bag_at(path: Path, where: str) -> Bag:
    """Return the bag of a file or folder.

    Raises:
        StageError: there is none, or its format is not supported.
    """
    files = [one for one in matched(path) if one.suffix in _SUFFIXES]  # run_2.db3 before run_10.db3
    if not files:
        packed = sorted(path.glob("*.zstd")) if path.is_dir() else []
        if packed or path.suffix == ".zstd":
            what, why = f"{path} is a compressed file", "it must be unpacked to another file first"
            raise StageError(what, why=why, where=where, fix=f"zstd -d {packed[0] if packed else path}")
        other = f"no file there ends in {' or '.join(_SUFFIXES)}"
        why = other if exists(path) else "there is no such file or folder"
        raise StageError(f"no bag at {path}", why=why, where=where, fix="name the folder that ros2 bag record wrote")
    if files[0].suffix == ".mcap":
        if find_spec("mcap") is None:
            raise FinalError("a bag of MCAP files needs mcap", where=where, fix=installation.command("ros2"))
        return McapBag(path, files, where)
    return SqliteBag(path, files, where)


class SqliteBag:
    """Bag of SQLite files. Raises StageError if one is not such a file.

    Attributes:
        topics: topic → message type.
    """

    def __init__(self, path: Path, files: Sequence[Path], where: str) -> None:
        self.path, self._files, self._where = path, files, where
        self.topics: Mapping[str, str] = {}
        for file in files:
            what, fix = f"{file} is not a bag of ROS 2", "check it: ros2 bag info"
            no_bag = raised_as(StageError, what, of=sqlite3.Error, where=where, fix=fix)
            with no_bag, closing(self._connect(file)) as database:
                self.topics = {**self.topics, **dict(database.execute(_TOPICS))}

    def messages(self, topics: Sequence[str]) -> Generator[tuple[str, int, bytes | memoryview], None, None]:
        """Yield topic, time of recording in ns since 1970, and CDR of each message of one to three topics, in order.

        Raises:
            StageError: the file is cut off or damaged; the messages before that are valid.
        """
        wanted = (*topics, *topics, *topics)[:3]
        for file in self._files:
            what, fix = f"{file} is damaged or cut off", "copy it again, or save the rest: sqlite3 FILE .recover"
            as_error = raised_as(StageError, what, of=sqlite3.Error, where=self._where, fix=fix)
            with as_error, closing(self._connect(file)) as database:
                for topic, time_ns, data in database.execute(_MESSAGES, wanted):
                    if data[:4] == _ZSTD:
                        fix = "record without --compression-mode message, or convert it: ros2 bag convert"
                        raise StageError(f"the messages of {file} are compressed", where=self._where, fix=fix)
                    yield topic, time_ns, data

    @staticmethod
    def _connect(file: Path) -> sqlite3.Connection:
        database = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)
        if database.execute(_TABLES).fetchone() != (2,):  # a view may be an endless query
            database.close()
            raise sqlite3.DatabaseError("it has no tables topics and messages")
        return database


_OPTIONS: Mapping[str, Any] = {"emit_chunks": True, "record_size_limit": 1 << 30}
"""Options of each StreamReader: a longer record counts as damage; chunks stay packed, for :func:`_unpacked`."""
_FOOTER_BYTES = 37  # with the closing magic
_DAMAGE = (struct.error, EOFError, ValueError, RuntimeError, LookupError)
"""Errors that the readers of records and of compressed chunks raise in addition to their own."""


class McapBag:
    """Bag of MCAP files, as :class:`SqliteBag`."""

    def __init__(self, path: Path, files: Sequence[Path], where: str) -> None:
        self.path, self._files, self._where = path, files, where
        found: dict[str, str] = {}
        for file in files:
            schemas: dict[int, str] = {}
            try:
                for record in self._summary(file) or self._records(file):
                    if type(record).__name__ == "Schema":
                        schemas[record.id] = record.name
                    elif type(record).__name__ == "Channel":
                        found.setdefault(record.topic, schemas.get(record.schema_id, ""))
            except StageError as error:
                if not found:
                    fix = "check it: ros2 bag info"
                    raise StageError(f"{file} is not a bag of ROS 2", why=error.why, where=where, fix=fix) from error
        self.topics: Mapping[str, str] = found

    def messages(self, topics: Sequence[str]) -> Generator[tuple[str, int, bytes | memoryview], None, None]:
        for file in self._files:
            names: dict[int, str] = {}
            for record in self._records(file):
                if type(record).__name__ == "Channel":
                    names[record.id] = record.topic
                elif type(record).__name__ == "Message" and names.get(record.channel_id) in topics:
                    yield names[record.channel_id], record.log_time, record.data

    def _records(self, file: Path) -> Iterator[Any]:
        """Yield the records of a file. Raises StageError if it is cut off or damaged."""
        from mcap.exceptions import McapError
        from mcap.stream_reader import StreamReader
        from zstandard import ZstdError

        why = "it has no end"
        try:
            with file.open("rb") as stream:
                for record in StreamReader(stream, **_OPTIONS).records:
                    yield from _unpacked(record) if type(record).__name__ == "Chunk" else (record,)
                    if type(record).__name__ == "Footer":
                        return
        except (McapError, ZstdError, *_DAMAGE) as error:
            why = cause(error) or type(error).__name__
        fix = "copy it again, or save what is there: mcap recover"
        raise StageError(f"{file} is damaged or cut off", why=why, where=self._where, fix=fix)

    @staticmethod
    def _summary(file: Path) -> list[Any]:
        """Return the schemas and channels of a complete file; an empty list for one that is cut off."""
        from mcap.exceptions import McapError
        from mcap.stream_reader import StreamReader

        try:
            with file.open("rb") as stream:
                stream.seek(file.stat().st_size - _FOOTER_BYTES)
                start = getattr(next(StreamReader(stream, skip_magic=True, **_OPTIONS).records), "summary_start", 0)
                stream.seek(start)
                records = StreamReader(stream, skip_magic=True, **_OPTIONS).records if start else ()
                found = [one for one in records if type(one).__name__ in ("Schema", "Channel")]
        except (McapError, OSError, *_DAMAGE):
            return []
        return sorted(found, key=lambda one: type(one).__name__ == "Channel")


Bag = SqliteBag | McapBag


def _unpacked(chunk: Any) -> Sequence[Any]:
    """Return the records of a chunk of an MCAP file. Raises ValueError where it is more than it says, or too much."""
    from lz4.frame import LZ4FrameDecompressor
    from mcap.stream_reader import breakup_chunk
    from zstandard import ZstdDecompressor

    if chunk.uncompressed_size > limits.BAG_CHUNK_BYTES:
        raise ValueError(f"a chunk has {chunk.uncompressed_size} bytes, and the limit is {limits.BAG_CHUNK_BYTES}")
    data = chunk.data
    if chunk.compression == "zstd":
        data = ZstdDecompressor().stream_reader(data).read(chunk.uncompressed_size + 1)
    elif chunk.compression == "lz4":
        data = LZ4FrameDecompressor().decompress(data, chunk.uncompressed_size + 1)
    if len(data) != chunk.uncompressed_size:
        raise ValueError("a chunk is not as long as it says")
    records: Sequence[Any] = breakup_chunk(replace(chunk, compression="", data=data))
    return records


def bag_source(name: str, config: SourceStage, context: Context) -> BagSource:
    """Return the source of a bag: ``bag:PATH#/TOPIC``, or its path alone if only one topic has images.

    Raises:
        ConfigError: an invalid topic name or option.
        StageError: there is no such bag, or it has no topic with images.
    """
    where = f"stages.{name}"
    text, _, topic = config.source.removeprefix("bag:").removeprefix("file://").partition("#")
    bag = bag_at(resolve_input(Path(text), context.directory).absolute(), where)
    options = options_of(config, where)
    topics = topics_of(_image_topic(bag, topic, options.depth, where), options, where)
    return BagSource(name, bag, topics, config, context)


def _image_topic(bag: Bag, topic: str, depth: str, where: str) -> str:
    """Return the topic to read. Raises StageError."""
    kinds = KINDS_OF_ROLE["image"]
    images = sorted(name for name, kind in bag.topics.items() if kind in kinds and name != depth)
    known = f"with images: {', '.join(images) or 'none'}"
    if topic and topic in bag.topics:
        return topic
    if topic:
        what = f"{bag.path} has no topic {topic}{nearest(topic, bag.topics)}"
        raise StageError(what, why=known, where=where, fix=f"source: bag:{bag.path}#/TOPIC")
    if len(images) == 1:
        return images[0]
    what = f"{bag.path} has {len(images) or 'no'} topics with images"
    raise StageError(what, why=known, where=where, fix=f"name one: source: bag:{bag.path}#/TOPIC")


class BagSource(ImageSource):
    """Source of every image of a topic in a bag, in order, as fast as they are taken; ``realtime: true`` paces them.

    :meth:`frames` raises StageError: the bag is cut off, or has no image. The error says how much was read.
    """

    def __init__(self, name: str, bag: Bag, topics: Mapping[Role, str], config: SourceStage, context: Context) -> None:
        super().__init__(name, config, context, MediaClock(False, DEFAULT_PERIOD_NS), config.fps)
        self._bag, self._topics = bag, topics
        for role, topic in topics.items():
            self._check_type(role, topic)
        has_depth, title = "depth" in topics, f"topic {topics['image']}"
        self._camera = CameraTopics(title, self._where, has_depth, context.counter, context.clock, None)
        self.share, self.thin = self._timeline.share, self._timeline.thin

    @property
    def frame_id(self) -> str:
        """Coordinate frame of the camera; empty before its first image."""
        return self._camera.frame_id

    def stats(self) -> SourceStats:
        return SourceStats(self._camera.skipped)

    def _images(self, stop: threading.Event) -> Generator[Image, None, None]:
        roles: dict[str, Role] = {topic: role for role, topic in self._topics.items()}
        count, last_ns, first_ns = 0, 0, 0
        try:
            with closing(self._bag.messages(list(roles))) as messages:
                for topic, log_ns, data in messages:
                    first_ns, last_ns = first_ns or log_ns, log_ns
                    incoming = Incoming(roles[topic], self._bag.topics[topic], data, log_ns)
                    for image in self._camera.images(incoming, log_ns):
                        count += 1
                        yield image
            for image in self._camera.last():
                count += 1
                yield image
        except StageError as error:
            seconds = (last_ns - first_ns) / 1e9
            why = f"{error.why}; {count} images, {seconds:.1f} s, were read before"
            raise StageError(error.what, why=why, where=self._where, fix=error.fix) from error
        if not count:
            why = f"{self._camera.skipped} messages are damaged" if self._camera.skipped else "the topic has no message"
            raise StageError(f"{self._topics['image']} of {self._bag.path} gave no image", why=why, where=self._where)

    def _check_type(self, role: Role, topic: str) -> None:
        kind = self._bag.topics.get(topic)
        known = KINDS_OF_ROLE[role]
        if kind in known or (kind is None and role == "info"):
            return
        fitting = sorted(name for name, one in self._bag.topics.items() if one in known)
        known_as = f"topic {topic} of {self._bag.path} is of type {kind}"
        what = known_as if kind else f"no topic {topic} in {self._bag.path}"
        fix = f"of that type there: {', '.join(fitting) or 'none'}"
        raise StageError(what, why=f"this needs {' or '.join(known)}", where=self._where, fix=fix)
