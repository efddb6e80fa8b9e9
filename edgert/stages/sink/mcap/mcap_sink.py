"""``sink: mcap``, which records a run, in a thread of its own, so that no stage waits for the disk."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from edgert._version import __version__
from edgert.clock import NotedClock, time_of_day_ns
from edgert.config import stages as section
from edgert.config.fields import Names, OutputPath, PositiveBytes, Seconds
from edgert.config.flow import Where
from edgert.errors import ConfigError
from edgert.policy import OnError
from edgert.recording import mcap_messages as messages
from edgert.recording.mcap_file import McapWriter
from edgert.runtime import json_form
from edgert.runtime.decisions import Entry, Journal
from edgert.runtime.records import Result
from edgert.runtime.worker import StepThread
from edgert.stages import kinds
from edgert.stages.context import Context
from edgert.stages.sink.mcap.camera_track import CameraTrack, PacketTrack, Piece, PixelTrack
from edgert.stages.sink.mcap.last_seconds import LastSeconds
from edgert.stages.sink.output_file import Files, OutputFile, cannot_write
from edgert.stages.sink.retention import Rules, fixed_folder
from edgert.stages.zones.rules import Events
from edgert.stages.zones.section import check_rules

log = logging.getLogger("edgert.sink")

_PERIOD_S = 0.25
"""Seconds between two chunks. With the half second between flushes, a power cut costs less than a second."""
_CHUNK_BYTES = 4 << 20
_METRICS_S = 1.0
_MAX_RESULTS = 4096
_CHANGING_S = 5.0
"""Longest time between the replacement of a stage and the journal's entry with the new pipeline."""
FORMAT = 1
"""Version of the content of edgert's own messages."""
_ROTATE_S = 600.0
_PARTS = 6
"""Finished files that hold the ring's seconds; one more is being written."""


class KeepRecordings(kinds.Keep):
    """Retention limits of recordings. With ``last``, only the seconds around a moment are recorded."""

    last: Seconds | None = Field(
        default=None,
        ge=1,
        le=3600,
        examples=["30s"],
        description="record only so much before an event, a failure or the end of the run",
    )
    after: Seconds = Field(default=5.0, ge=0, le=60, description="recorded after an event or a failure; default: 5s")
    rules: Names = Field(default=(), description="rules whose events count; default: all")

    @model_validator(mode="after")
    def _check_keys(self) -> KeepRecordings:
        if self.last is not None:
            return self
        if alone := sorted({"after", "rules"} & self.model_fields_set):
            raise ValueError(f"{alone[0]}: belongs to last:, like {{last: 30s, {alone[0]}: ...}}")
        if self.age is None and self.size is None and self.free is None:
            raise ValueError("expected last:, age:, size: or free:, like 30s or {last: 30s, size: 20GB, free: 2GB}")
        return self


class Mcap(kinds.FileSink):
    """The whole run, to be replayed: see [replay](replay.md)."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "restart")
    why_not: ClassVar[str] = "what is recorded after a failure begins anew"
    fields: ClassVar[tuple[str, ...]] = ("date", "time")
    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = False
    shows_images: ClassVar[bool] = False
    path: OutputPath = Field(description="`.mcap`; may hold `{date}`, `{time}`")
    rotate: kinds.Rotate | None = Field(
        default=None,
        description="`{size: 500MB, every: 10m}`: when the next file begins; default: every 10 minutes",
    )
    keep: Annotated[KeepRecordings, section.ShortFor("last")] | None = Field(
        default=None,
        description="`30s`, or `{last: 30s, after: 5s, rules: [stuck]}`: only [the last seconds](replay.md#the-last-"
        "seconds) before an event, a failure or the end; and `{age: 7d, size: 20GB, free: 2GB}` as of other sinks",
    )
    pixels: bool = Field(
        default=False, description="record decoded images, not packets: exact for cameras without packets, and large"
    )
    memory: PositiveBytes = Field(default=64 << 20, description="per camera: packets or pixels that wait for the disk")

    @model_validator(mode="after")
    def _check_keys(self) -> Mcap:
        if self.path.suffix.lower() != ".mcap":
            raise ValueError(f"cannot write {self.path.name}; end it in .mcap")
        if self.memory < 1 << 20:
            raise ValueError(f"memory: at least 1MiB, not {self.memory} bytes")
        if self.rotate is not None and self.keep is not None and self.keep.last is not None:
            raise ValueError("rotate: has no meaning with keep: {last}, which makes a file for each moment")
        return self

    def check(self, name: str, stages: Mapping[str, section.StageConfig], where: Where) -> None:
        """Raise ConfigError for a second recording of the run, and for rules that no stage before it has."""
        for other, stage in stages.items():
            if other != name and isinstance(stage, Mcap):
                what = f"stages {other!r} and {name!r} both record the run"
                raise ConfigError(what, where=where(("stages", name)), fix="keep one, and let it listen to all stages")
        if self.keep is not None:
            check_rules(name, "keeps the seconds around", self.keep.rules, stages, where(("stages", name, "keep")))

    def make(self, name: str, context: Context) -> McapSink:
        """Return the sink."""
        return McapSink(name, self, context)


class McapSink:
    """Sink that records camera data, every result that it gets, and every decision of the run."""

    def __init__(self, name: str, config: Mcap, context: Context) -> None:
        self._name, self._where, self._config, self._clock = name, f"stages.{name}", config, context.clock
        self._journal = context.journal or Journal()  # the assembly always gives one to this kind
        self._about, self._stats, self._sources = context.about, context.stats, dict(context.sources)
        self._waits = not any(source.live for source in self._sources.values())  # nothing may be lost
        rules = config.rules(context)
        rules = rules if config.rotate is not None else replace(rules, rotate_s=_ROTATE_S)
        self._files, self._last = Files(config.path, rules, self._where), None
        if config.keep is not None and (keep_s := config.keep.last) is not None:
            rules = Rules(keeps=True, endless=True, rotate_s=keep_s / _PARTS, keep_s=keep_s)
            ring = Files(fixed_folder(config.path) / f"{name}-ring/{{date}}-{{time}}.mcap", rules, self._where)
            self._last = LastSeconds(self._where, self._files, ring, config.keep.after, config.keep.rules)
            self._files = ring
        self._results: queue.Queue[Result] = queue.Queue(_MAX_RESULTS)
        self._writing = StepThread(_PERIOD_S)
        self._tracks = self._listen()  # at once, because a source may begin before this stage is opened
        self._file: OutputFile | None = None
        self._writer = McapWriter("")
        self._head: dict[str, Any] = {}
        self._part, self._lost, self._metrics_ns = 0, 0, 0
        self._said: dict[str, int] = {}
        self._settings: dict[str, Any] = {}
        self._has_frames, self._changing_s = False, -_CHANGING_S

    def open(self) -> None:
        """Check the output and start recording. Raises StageError where a file cannot be written."""
        self._tracks = self._tracks or self._listen()
        if self._last is not None:
            self._last.open()
        else:
            self._files.check()
        kinds = {stream: "video" if track.topic.name.endswith("video") else "image"
                 for stream, track in self._tracks.items()}  # fmt: skip
        self._head = {"format": FORMAT, "sink": self._name, "streams": kinds, **self._about()}
        self._begin_file()
        self._writing.start(f"edgert-{self._name}", self._step, self._end)

    def process(self, result: Result) -> None:
        """Queue a result. Raises EdgertError where the recording could not be written."""
        self._writing.check()
        try:
            self._results.put(result, block=self._waits, timeout=5 if self._waits else None)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write what is queued, and finish the file."""
        if not self._writing.stop():
            for track in self._tracks.values():
                track.close()
        self._tracks = {}
        self._writing.check()

    def _listen(self) -> dict[str, CameraTrack]:
        """Return the camera data to record, by stream."""
        tracks: dict[str, CameraTrack] = {}
        for stream, source in self._sources.items():
            tap, memory_bytes = getattr(source, "tap", None), self._config.memory
            if tap is not None and not self._config.pixels:
                tracks[stream] = PacketTrack(stream, tap, memory_bytes, self._writing.wake)
                continue
            pixels = tracks[stream] = PixelTrack(stream, memory_bytes, not source.live, self._writing.wake)
            self._journal.pixels[stream] = pixels.put
        return tracks

    def _end(self) -> None:
        for track in self._tracks.values():
            track.close()
        try:
            self._end_file()
        finally:
            if self._last is not None:
                self._last.close(self._has_frames)
            else:
                self._files.close()

    def _step(self, _is_last: bool) -> None:
        """Record what came since the last call, as one chunk or more."""
        if isinstance(self._clock, NotedClock):
            self._clock.look()
        results = [self._results.get_nowait() for _ in range(self._results.qsize())]
        entries = self._journal.take()  # before packets, so that the packets of their frames have come
        if self._is_due():
            self._end_file()
            self._begin_file()
        restarts = self._add_cameras()
        for result in results:
            self._add_result(result)
        self._add_decisions(entries, restarts)
        now_ns = self._clock.now_ns()
        if now_ns - self._metrics_ns >= _METRICS_S * 1e9:
            self._metrics_ns = now_ns
            self._add(messages.METRICS, now_ns, self._stats())
        self._flush()
        if self._last is not None:
            self._last.advance()
        else:
            self._files.remove_old()

    def _is_due(self) -> bool:
        """Return whether the next file begins now. None begins during a change of the pipeline."""
        if self._file is None or time.monotonic() - self._changing_s < _CHANGING_S:
            return False
        is_over = self._last is not None and self._last.is_over
        return is_over or self._files.is_due(self._file, self._writer.waiting_bytes)

    def _add_cameras(self) -> list[dict[str, Any]]:
        """Record new camera data; return the records for decoders that begin in it."""
        restarts, offset_ns = [], time_of_day_ns(0, self._clock)
        for stream, track in self._tracks.items():
            for piece in track.take(offset_ns):
                restarts += self._add_piece(track, piece, offset_ns)
                if self._writer.waiting_bytes > _CHUNK_BYTES:
                    self._flush()
            if track.lost > self._said.get(stream, 0):
                count, self._said[stream] = track.lost - self._said.get(stream, 0), track.lost
                text = "%s: %d packets or images of %s are missing: the disk was too slow"
                log.warning(text, self._where, count, stream, extra={"code": "record.lost"})
        return restarts

    def _add_piece(self, track: CameraTrack, piece: Piece, offset_ns: int) -> list[dict[str, Any]]:
        """Record a piece of camera data; return the record for a decoder that begins there, if one does."""
        at_ns = piece.read_ns + offset_ns
        self._writer.add(piece.topic or track.topic, at_ns, at_ns, *piece.parts, sequence=piece.number)
        return [] if piece.restart is None else [{**piece.restart, "number": piece.number}]

    def _add_result(self, result: Result) -> None:
        frame = result.frame
        data = json_form.plain_result(result, self._clock)
        data["digests"] = {stage: messages.digest(record) for stage, record in result.outputs.items()}
        self._add(messages.RESULTS, frame.timestamp_ns, data)
        if (boxes := messages.drawn(result, data["time_ns"])) is not None:
            self._writer.add(messages.topic(f"/{frame.stream}/annotations"), data["time_ns"], data["time_ns"], boxes)
        if (found := result.latest(Events)) is not None:
            for event in found.events:
                self._add(messages.EVENTS, frame.timestamp_ns, event.to_json())
                if self._last is not None and event.phase == "begin":
                    self._last.take_event(event.rule)

    def _add_decisions(self, entries: list[Entry], restarts: list[dict[str, Any]]) -> None:
        if not entries and not restarts:
            return
        made: list[tuple[Any, ...]] = []
        for entry in entries:
            self._follow(entry)
            if entry.kind == "give":
                track, (timestamp_ns, media_ns, *_) = self._tracks.get(entry.stream), entry.more
                number = -1 if track is None else track.number_of(entry.frame, timestamp_ns, media_ns)
                entry = entry._replace(more=(*entry.more, number))
            made.append(tuple(entry))
        lost = self._journal.lost + self._lost
        self._add(messages.DECISIONS, self._clock.now_ns(), {"entries": made, "restarts": restarts, "lost": lost})

    def _follow(self, entry: Entry) -> None:
        """Update the head of the next file by an entry of the journal; keep the seconds around a failure."""
        if entry.kind == "give":
            self._has_frames = True
        elif entry.kind == "settings":
            self._settings[entry.task] = entry.more
        elif entry.kind == "replace":
            self._changing_s = time.monotonic()
        elif entry.kind == "file":
            self._head = {**self._head, **self._about(), "pipeline": entry.more}
            self._changing_s = -_CHANGING_S
        elif entry.kind == "fail" and self._last is not None:
            self._last.take_failure(entry.task)

    def _add(self, name: str, at_ns: int, value: Mapping[str, Any]) -> None:
        log_ns = time_of_day_ns(self._clock.now_ns(), self._clock)
        publish_ns = time_of_day_ns(at_ns, self._clock)
        self._writer.add(messages.topic(name), log_ns, publish_ns, json_form.encoded(value))

    def _begin_file(self) -> None:
        self._file = self._files.begin("")
        self._writer = McapWriter(f"edgert {__version__}")
        self._write(self._writer.begin())
        now_ns = self._clock.now_ns()
        times = {"began_ns": now_ns, "offset_ns": time_of_day_ns(0, self._clock)}
        head = {**self._head, **times, "part": self._part, "settings": self._settings}
        self._part += 1
        self._add(messages.RUN, now_ns, head)
        restarts, offset_ns = [], time_of_day_ns(0, self._clock)
        for track in self._tracks.values():
            for piece in track.begin():
                restarts += self._add_piece(track, piece, offset_ns)
        self._add_decisions([], restarts)
        self._flush()

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                self._write(self._writer.end(), file)
            finally:
                self._files.finish(file)
            if self._last is not None:
                self._last.part_finished(file.path)

    def _flush(self) -> None:
        self._write(self._writer.close_chunk())

    def _write(self, data: bytes, file: OutputFile | None = None) -> None:
        file = file or self._file
        assert file is not None
        try:
            file.write(data, (self._last or self._files).make_room)
        except OSError as error:
            raise cannot_write(file.path, error, self._where, kept="every chunk so far is complete") from error
