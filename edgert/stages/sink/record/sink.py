"""Sink that records packets, in a thread of its own, so that slow models and dropped frames leave no gap."""

import queue
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from edgert.runtime.records import Result
from edgert.runtime.worker import StepThread
from edgert.stages.context import Context
from edgert.stages.sink.output_file import Files
from edgert.stages.sink.record.annotated import AnnotatedVideo
from edgert.stages.sink.record.clips import Clips
from edgert.stages.sink.record.recorder import Index, Track, run_all
from edgert.stages.sink.retention import Rules
from edgert.stages.source.packets import Inbox, Tap
from edgert.stages.zones.rules import Event, Events

_PERIOD_S = 0.25  # with fragments of half a second, a power cut costs less than a second


class RecordSink:
    """Sink that records the packets of sources, or the drawn images of results, or both.

    Args:
        path: pattern of the files' paths.
        taps: taps of the sources whose packets are recorded, by name.
        annotated: encoder of drawn images; None: they are not recorded.
        memory_bytes: maximum size of each stream's packets that wait for the disk, and of those that a clip may begin
            with.
        clips: function that returns the clips of a stream; None: everything is recorded.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        rules: Rules,
        taps: Mapping[str, Tap],
        annotated: AnnotatedVideo | None,
        context: Context,
        *,
        memory_bytes: int,
        clips: Callable[[], Clips] | None,
    ) -> None:
        self._name, self._where, self._path, self._clock = name, f"stages.{name}", path, context.clock
        self._memory_bytes, self._clips = memory_bytes, clips
        self._waits = not any(source.live for source in context.sources.values())  # no image may be lost
        self._taps, self._annotated = taps, annotated
        self._writing = StepThread(_PERIOD_S)
        self._events: queue.SimpleQueue[tuple[Event, str, int, int]] = queue.SimpleQueue()
        self._passed: dict[str, tuple[int, int]] = {}
        rules = rules if clips is None else replace(rules, endless=False)  # clips end
        self._files = Files(path, rules, self._where)
        self._annotated_files = Files(path.with_name(f"{path.stem}-annotated{path.suffix}"), rules, self._where)
        self._inboxes = self._listen()  # at once, because a source may begin before this stage is opened

    def open(self) -> None:
        """Check the output and start recording.

        Raises DeviceError where nothing can encode drawn images, StageError where a folder cannot be written.
        """
        self._inboxes = self._inboxes or self._listen()
        self._files.check()
        if self._annotated is not None:
            self._annotated_files.check()
            self._annotated.open()
        self._index = Index(self._name, self._path)
        self._index.open()
        self._tracks = {name: self._track(name, inbox) for name, inbox in self._inboxes.items()}
        self._annotated_tracks: dict[str, Track] = {}
        self._writing.start(f"edgert-{self._name}", self._step, self._end)

    def process(self, result: Result) -> None:
        """Take the events of a frame, and encode its drawn image.

        Raises EdgertError where the recording could not be written, or the encoder failed.
        """
        self._writing.check()
        frame = result.frame
        if self._annotated is not None:
            for sample in self._annotated.encode(result):
                self._annotated_inbox(frame.stream).put(sample)
        if self._clips is None:
            return
        found = result.latest(Events)
        for event in found.events if found is not None else ():
            self._events.put((event, frame.stream, frame.timestamp_ns, frame.media_ns))
        self._passed[frame.stream] = (frame.timestamp_ns, frame.media_ns)

    def close(self) -> None:
        """Write what is queued, and finish every file."""
        if self._annotated is not None:
            try:
                for stream, sample in self._annotated.finish():
                    self._annotated_inbox(stream).put(sample)
            finally:
                self._annotated.close()
        if not self._writing.stop():
            for name, inbox in self._inboxes.items():
                self._taps[name].leave(inbox)
        self._inboxes = {}
        self._writing.check()

    def _listen(self) -> dict[str, Inbox]:
        return {name: tap.listen(self._memory_bytes, self._writing.wake) for name, tap in self._taps.items()}

    def _track(self, stream: str, inbox: Inbox, is_annotated: bool = False) -> Track:
        return Track(
            stream,
            inbox,
            self._annotated_files if is_annotated else self._files,
            self._index,
            self._clock,
            self._where,
            clips=None if self._clips is None else self._clips(),
            memory_bytes=self._memory_bytes,
            waits=self._waits if is_annotated else self._taps[stream].waits,
            is_annotated=is_annotated,
        )

    def _annotated_inbox(self, stream: str) -> Inbox:
        if stream not in self._annotated_tracks:
            inbox = Inbox(self._memory_bytes, self._waits, self._writing.wake)
            self._annotated_tracks = {**self._annotated_tracks, stream: self._track(stream, inbox, True)}
        return self._annotated_tracks[stream].inbox

    def _step(self, is_last: bool) -> None:
        passed = dict(self._passed)  # before events, so that those of all these frames are among them
        events = [self._events.get() for _ in range(self._events.qsize())]
        for track, tap in self._all_tracks():
            own = [(event, _position(tap, *at)) for event, stream, *at in events if stream == track.stream]
            newest = passed.get(track.stream)
            track.advance(own, None if newest is None else _position(tap, *newest), is_last)
        self._files.remove_old()
        if self._annotated is not None:
            self._annotated_files.remove_old()

    def _end(self) -> None:
        for name, inbox in self._inboxes.items():
            self._taps[name].leave(inbox)
        for track in self._annotated_tracks.values():
            track.inbox.close()
        run_all([*(track.finish for track, _ in self._all_tracks()), self._index.close, self._files.close])

    def _all_tracks(self) -> list[tuple[Track, Tap | None]]:
        """Return the tracks of sources, each with its tap, and those of drawn images."""
        own: list[tuple[Track, Tap | None]] = [(track, self._taps[name]) for name, track in self._tracks.items()]
        return [*own, *((track, None) for track in self._annotated_tracks.values())]


def _position(tap: Tap | None, timestamp_ns: int, media_ns: int) -> int:
    """Return the position of a frame among the packets of its track, which ``tap`` gives; None: drawn images."""
    return media_ns if tap is None else tap.place(timestamp_ns, media_ns)
