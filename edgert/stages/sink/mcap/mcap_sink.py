"""Sink that records a run, in a thread of its own, so that no stage waits for the disk."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from edgert._version import __version__
from edgert.clock import Clock, NotedClock, time_of_day_ns
from edgert.recording import mcap_messages as messages
from edgert.recording.mcap_file import McapWriter
from edgert.runtime import json_form
from edgert.runtime.decisions import Entry, Journal
from edgert.runtime.records import Result
from edgert.runtime.worker import StepThread
from edgert.stages.sink.mcap.camera_track import CameraTrack, Piece
from edgert.stages.sink.mcap.last_seconds import LastSeconds
from edgert.stages.sink.output_file import Files, OutputFile, cannot_write
from edgert.stages.zones.rules import Events

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


class McapSink:
    """Sink that records camera data, every result that it gets, and every decision of the run.

    Args:
        tracks: function that returns the camera data to record, by stream. It is called when the sink is made, and
            again when it is reopened.
        journal: the run's decisions; only this sink takes them.
        about: function that returns the head of the recording.
        stats: function that returns the state of the run as plain data.
        waits: whether nothing may be lost, because no source is live.
        last: ring whose files are ``files``; None: everything is kept.
    """

    def __init__(
        self,
        name: str,
        files: Files,
        tracks: Callable[[threading.Event], Mapping[str, CameraTrack]],
        journal: Journal,
        clock: Clock,
        about: Callable[[], Mapping[str, Any]],
        stats: Callable[[], Mapping[str, object]],
        waits: bool,
        last: LastSeconds | None = None,
    ) -> None:
        self._name, self._where, self._files, self._waits, self._clock = name, f"stages.{name}", files, waits, clock
        self._journal, self._about, self._stats, self._last = journal, about, stats, last
        self._results: queue.Queue[Result] = queue.Queue(_MAX_RESULTS)
        self._writing = StepThread(_PERIOD_S)
        self._listen = tracks
        self._tracks = tracks(self._writing.wake)  # at once, because a source may begin before this stage is opened
        self._file: OutputFile | None = None
        self._writer = McapWriter("")
        self._head: dict[str, Any] = {}
        self._part, self._lost, self._metrics_ns = 0, 0, 0
        self._said: dict[str, int] = {}
        self._settings: dict[str, Any] = {}
        self._has_frames, self._changing_s = False, -_CHANGING_S

    def open(self) -> None:
        """Check the output and start recording. Raises StageError where a file cannot be written."""
        self._tracks = self._tracks or self._listen(self._writing.wake)
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
            self._writer.add(messages.annotation_topic(frame.stream), data["time_ns"], data["time_ns"], boxes)
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
        self._writer.add(messages.own_topic(name), log_ns, publish_ns, json_form.encoded(value))

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
