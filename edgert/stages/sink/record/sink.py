"""Recording in a separate thread, so that slow models and dropped frames leave no gap."""

import queue
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgert.clock import Clock
from edgert.runtime.records import Result
from edgert.runtime.worker import StepThread
from edgert.stages.sink.output_files import Files, Rules
from edgert.stages.sink.record.annotated import AnnotatedVideo
from edgert.stages.sink.record.clips import ClipRules
from edgert.stages.sink.record.recorder import Index, Step, Track, all_of
from edgert.stages.source.packets import Inbox, Tap
from edgert.stages.zones.rules import Event, Events

_PERIOD_S = 0.25  # with fragments of half a second and the disk, less than a second is lost


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a recording.

    Attributes:
        path: with fields.
        clips: what clips are to show; None: everything is recorded.
        memory_bytes: of packets that wait for the disk, and again of those that a clip may begin with; of each stream.
    """

    path: Path
    rules: Rules
    clips: ClipRules | None
    memory_bytes: int


class RecordSink:
    """Sink that records the packets of sources, and with a ``twin`` also the images of results.

    Args:
        taps: the sources whose packets are recorded, by name.
        waits: whether nothing may be lost of images; else those that the disk is too slow for are.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        taps: Mapping[str, Tap],
        clock: Clock,
        twin: AnnotatedVideo | None,
        waits: bool,
    ) -> None:
        self._name, self._where, self._settings, self._clock = name, f"stages.{name}", settings, clock
        self._taps, self._twin, self._waits = taps, twin, waits
        self._writing = StepThread(_PERIOD_S)
        self._events: queue.SimpleQueue[tuple[Event, str, int, int]] = queue.SimpleQueue()
        self._passed: dict[str, tuple[int, int]] = {}
        path = settings.path
        rules = settings.rules if settings.clips is None else replace(settings.rules, endless=False)  # clips end
        self._files = Files(path, rules, self._where)
        self._twins = Files(path.with_name(f"{path.stem}-annotated{path.suffix}"), rules, self._where)
        self._inboxes = self._listening()  # already: a source may begin before this stage

    def open(self) -> None:
        """Check the output and start recording.

        Raises DeviceError when nothing can encode the twin, StageError for a folder that cannot be written.
        """
        self._inboxes = self._inboxes or self._listening()
        for files in (self._files, self._twins) if self._twin else (self._files,):
            files.check()
        if self._twin is not None:
            self._twin.open()
        self._index = Index(self._name, self._settings.path)
        self._index.open()
        self._tracks = {name: self._track(name, inbox) for name, inbox in self._inboxes.items()}
        self._annotated: dict[str, Track] = {}
        self._writing.start(f"edgert-{self._name}", self._step, self._end)

    def process(self, result: Result) -> None:
        """Take the events of a frame, and its image for the twin.

        Raises EdgertError: an earlier recording could not be written, or the encoder failed.
        """
        self._writing.check()
        frame = result.frame
        if self._twin is not None:
            for sample in self._twin.encode(result):
                self._annotated_inbox(frame.stream).put(sample)
        if self._settings.clips is None:
            return
        found = result.latest(Events)
        for event in found.events if found is not None else ():
            self._events.put((event, frame.stream, frame.timestamp_ns, frame.media_ns))
        self._passed[frame.stream] = (frame.timestamp_ns, frame.media_ns)

    def close(self) -> None:
        """Write what has come, and finish every file."""
        if self._twin is not None:
            try:
                for stream, sample in self._twin.finish():
                    self._annotated_inbox(stream).put(sample)
            finally:
                self._twin.close()
        if not self._writing.stop():
            for name, inbox in self._inboxes.items():
                self._taps[name].leave(inbox)
        self._inboxes = {}
        self._writing.check()

    def _listening(self) -> dict[str, Inbox]:
        return {name: tap.listen(self._settings.memory_bytes, self._writing.wake) for name, tap in self._taps.items()}

    def _track(self, stream: str, inbox: Inbox, is_annotated: bool = False) -> Track:
        return Track(
            stream,
            inbox,
            self._twins if is_annotated else self._files,
            self._index,
            self._clock,
            self._where,
            clips=self._settings.clips,
            memory_bytes=self._settings.memory_bytes,
            waits=self._waits if is_annotated else self._taps[stream].waits,
            is_annotated=is_annotated,
        )

    def _annotated_inbox(self, stream: str) -> Inbox:
        if stream not in self._annotated:
            inbox = Inbox(self._settings.memory_bytes, self._waits, self._writing.wake)
            self._annotated = {**self._annotated, stream: self._track(stream, inbox, True)}
        return self._annotated[stream].inbox

    def _step(self, is_last: bool) -> None:
        passed = dict(self._passed)  # before events, so that all of theirs are among them
        events = [self._events.get() for _ in range(self._events.qsize())]
        for track, tap in self._everything():
            own = [(event, place(tap, *at)) for event, stream, *at in events if stream == track.stream]
            newest = passed.get(track.stream)
            track.advance(own, None if newest is None else place(tap, *newest), is_last)
        self._files.tend()
        if self._twin is not None:
            self._twins.tend()

    def _end(self) -> None:
        for name, inbox in self._inboxes.items():
            self._taps[name].leave(inbox)
        for track in self._annotated.values():
            track.inbox.close()
        steps: list[Step] = [track.finish for track, _ in self._everything()]
        all_of([*steps, self._index.close, self._files.close])

    def _everything(self) -> list[tuple[Track, Tap | None]]:
        own: list[tuple[Track, Tap | None]] = [(track, self._taps[name]) for name, track in self._tracks.items()]
        return [*own, *((track, None) for track in self._annotated.values())]


def place(tap: Tap | None, timestamp_ns: int, media_ns: int) -> int:
    """Return the position of a frame among the packets; those of the twin have the positions of frames."""
    return media_ns if tap is None else tap.place(timestamp_ns, media_ns)
