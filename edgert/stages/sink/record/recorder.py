"""Recording of packets into consecutive files, or clips around events, with an index line for each file."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgert.clock import Clock, rfc3339, time_of_day_ns
from edgert.errors import EdgertError
from edgert.stages.sink.muxed_file import MuxedFile
from edgert.stages.sink.output_file import DISK, Files
from edgert.stages.sink.record.clips import LATE_NS, Clips, History
from edgert.stages.sink.results import JsonLines
from edgert.stages.sink.retention import Rules, fixed_folder
from edgert.stages.source.packets import Inbox, Sample
from edgert.stages.zones.rules import Event

log = logging.getLogger("edgert.sink")

_NEVER = -(1 << 62)
_INDEX = Rules(keeps=True, endless=True, rotate_bytes=16 << 20, keep_bytes=64 << 20)


class Index(JsonLines):
    """The index of finished files, one JSON line each: ``STAGE.jsonl`` in the deepest folder without a field."""

    def __init__(self, name: str, pattern: Path) -> None:
        self.folder = fixed_folder(pattern)
        super().__init__(self.folder / f"{name}.jsonl", _INDEX, f"stages.{name}")


class Track:
    """The packets of one stream on their way into files. For use in one thread.

    Args:
        clips: clips to record; None: everything is recorded.
        memory_bytes: maximum size of the packets that a clip may begin with.
        waits: whether no packet may be lost.
        is_annotated: whether the packets are encoded drawn images, for the index.
    """

    def __init__(
        self,
        stream: str,
        inbox: Inbox,
        files: Files,
        index: Index,
        clock: Clock,
        where: str,
        *,
        clips: Clips | None,
        memory_bytes: int,
        waits: bool,
        is_annotated: bool,
    ) -> None:
        self.stream, self.inbox = stream, inbox
        self._files, self._index, self._clock, self._where = files, index, clock, where
        self._waits, self._is_annotated, self._memory_bytes = waits, is_annotated, memory_bytes
        self._file: MuxedFile | None = None
        self._begin_ns = self._gop_bytes = self._lost = 0
        self._clips = clips
        self._history = History((clips.before_ns if clips else 0) + LATE_NS, memory_bytes)
        self._events: Sequence[Event] = ()

    def advance(self, events: Sequence[tuple[Event, int]], passed_ns: int | None, is_last: bool) -> None:
        """Take the new packets; write those that belong to a file.

        Args:
            events: events with their positions, which packets have reached.
            passed_ns: position of the newest frame whose events are known; packets are ahead of it.
            is_last: whether no more packets will come.

        Raises:
            EdgertError: a file cannot be written.
        """
        samples = self.inbox.take()
        if self.inbox.lost > self._lost:
            lost, self._lost = self.inbox.lost - self._lost, self.inbox.lost
            text = "%s: %d packets of %s are missing: the disk was too slow"
            log.warning(text, self._where, lost, self.stream, extra={"code": "record.lost"})
        if self._clips is None:
            for sample in samples:
                self._continue(sample)
        else:
            self._history.add(samples)
            newest_ns = max((sample.at_ns for sample in samples), default=self._history.newest_ns)
            late_ns = _NEVER if self._waits else newest_ns - LATE_NS  # a camera's frames are not waited for any longer
            passed_ns = late_ns if passed_ns is None else max(passed_ns, late_ns)
            for event, at_ns in events:
                self._write_clip(self._clips, newest_ns, max(at_ns, late_ns))
                self._clips.take(event, at_ns)
            self._write_clip(self._clips, newest_ns, newest_ns if is_last else passed_ns)
            self._trim(passed_ns if self._waits else newest_ns)
        if self._file is not None and self._file.output.is_dirty:
            DISK.sync_soon()

    def finish(self) -> None:
        """Finish the file; add its line to the index. Raises EdgertError."""
        file, self._file = self._file, None
        if file is None:
            return
        failure = file.close()
        if file.last is not None:
            self._index.write(self._index_line(file, file.last), self.stream)
        if failure is not None:
            raise failure

    def _continue(self, sample: Sample) -> None:
        """Write a packet of a continuous recording; begin the next file with a key frame where it is due."""
        file = self._file
        if sample.is_key:
            is_due = file is not None and file.is_full(self._gop_bytes)  # expects a group as large as the last
            self._gop_bytes = 0
            if is_due:
                self.finish()
        self._gop_bytes += sample.nbytes
        self._write(sample)

    def _write(self, sample: Sample) -> None:
        """Write a packet; begin another file where the camera's parameters or connection change."""
        if self._file is not None and self._file.format is not sample.format:
            self.finish()
        if self._file is None:
            if not sample.is_key:
                return
            self._begin_ns = time_of_day_ns(sample.read_ns, self._clock)
            self._file = MuxedFile(self._files, self.stream, self._where)
        self._file.add(sample)

    def _write_clip(self, clips: Clips, newest_ns: int, known_ns: int) -> None:
        """Write the packets of the clip, as far as its end is known; finish it at its end."""
        clip = clips.clip
        if clip is None or not self._history:
            return
        self._events = clip.events
        if clip.next is None:
            clip.next = self._history.start(clip.begin_ns)
        for number, sample in self._history.since(clip.next):
            if sample.at_ns > clip.end_ns(known_ns):
                break
            self._write(sample)
            clip.next = number + 1
        if clips.end_over(newest_ns, known_ns):
            self.finish()

    def _trim(self, newest_ns: int) -> None:
        """Remove old packets; warn where the memory is too small for the time before an event."""
        was_short = self._history.is_short
        self._history.trim(newest_ns)
        if self._history.is_short and not was_short:
            held = f"{self._memory_bytes} bytes hold only the last {self._history.seconds:.1f} s of {self.stream}"
            log.warning("%s: %s, so clips may begin too late; raise memory:", self._where, held)

    def _index_line(self, file: MuxedFile, last: Sample) -> dict[str, Any]:
        end_ns = time_of_day_ns(last.read_ns, self._clock) + int(last.duration * 10**9 * last.format.time_base)
        line: dict[str, Any] = {"stream": self.stream, "path": os.path.relpath(file.output.path, self._index.folder)}
        line |= {"begin": rfc3339(self._begin_ns), "begin_ns": self._begin_ns}
        line |= {"end": rfc3339(end_ns), "end_ns": end_ns, "seconds": round(file.length_ns / 1e9, 3)}
        line |= {"images": file.count, "bytes": file.output.size_bytes, "annotated": self._is_annotated}
        if self._clips is not None:
            keys = ("id", "rule", "time", "place", "track", "label")
            events = [event.to_json() for event in self._events]
            line["events"] = [{key: event[key] for key in keys if key in event} for event in events]
        return line


def run_all(steps: Sequence[Callable[[], None]]) -> None:
    """Run every step, even after an error; raise the first EdgertError at the end."""
    failure: EdgertError | None = None
    for step in steps:
        try:
            step()
        except EdgertError as error:
            failure = failure or error
    if failure is not None:
        raise failure
