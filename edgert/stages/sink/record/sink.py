"""``sink: record``, which records packets in a thread of its own: slow models and dropped frames leave no gap."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from edgert.config import stages as section
from edgert.config.fields import OutputPath, PositiveBytes
from edgert.config.flow import Where, sources_of, upstream
from edgert.errors import ConfigError
from edgert.kinds import SOURCES
from edgert.policy import OnError
from edgert.runtime.records import Result
from edgert.runtime.worker import StepThread
from edgert.stages import kinds
from edgert.stages.context import Context
from edgert.stages.sink.encoded_video import EncodedVideos
from edgert.stages.sink.encoder_choice import EncoderChoice
from edgert.stages.sink.muxed_file import FORMATS
from edgert.stages.sink.output_file import Files
from edgert.stages.sink.record.clips import Clips, ClipsSection
from edgert.stages.sink.record.recorder import Index, Track, run_all
from edgert.stages.sink.retention import has_field
from edgert.stages.source.kinds import kind_of
from edgert.stages.source.packets import Inbox, Tap
from edgert.stages.zones.rules import Event, Events
from edgert.stages.zones.section import check_rules

_PERIOD_S = 0.25  # with fragments of half a second, a power cut costs less than a second
_ROTATE_S = 600.0
_FIX = "annotated: only encodes what results show; or use sink: video"


class Record(kinds.ShowsImages, kinds.FileSink):
    """The camera's own packets, neither decoded nor encoded: see [recording](recording.md)."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "restart")
    why_not: ClassVar[str] = "what is recorded after a failure begins anew"
    path: OutputPath = Field(description="`.mp4`, `.mov` or `.mkv`; may hold `{stream}`, `{date}`, `{time}`")
    rotate: kinds.Rotate | None = Field(
        default=None,
        description="`{size: 500MB, every: 10m}`: when the next file begins; default: every 10 minutes",
    )
    clips: ClipsSection | None = Field(
        default=None,
        description="`{before: 5s, after: 5s, longest: 5m, rules: [intruder]}`: only around events of an [events "
        "stage](zones.md); default: everything",
    )
    memory: PositiveBytes = Field(
        default=64 << 20,
        description="per camera: packets that wait for the disk, and as much again for clips",
    )
    annotated: bool | Literal["only"] = Field(
        default=False,
        description="also record drawn images, as `NAME-annotated`; only: nothing else",
    )
    quality: int = Field(default=23, ge=0, le=51, description="of drawn images, as of `sink: video`")
    codec: Literal["h264", "h265"] = Field(default="h264", description="as of `sink: video`")
    encode: Literal["auto", "cpu", "gpu"] = Field(default="auto", description="as of `sink: video`")

    @property
    def reads_images(self) -> bool:
        return bool(self.annotated)

    @model_validator(mode="after")
    def _check_keys(self) -> Record:
        if self.path.suffix.lower() not in FORMATS:
            raise ValueError(f"cannot write {self.path.name}; end it in {' or '.join(FORMATS)}")
        if self.clips is not None and self.rotate is not None:
            raise ValueError("rotate: has no meaning with clips:, which are a file for each event")
        if self.keep and self.keep.size and self.rotate and (self.rotate.size or 0) >= self.keep.size:
            raise ValueError(
                f"keep: {{size}} leaves no room for one file of {self.rotate.size} bytes beside those that stay"
            )
        if self.memory < 1 << 20:
            raise ValueError(f"memory: at least 1MiB, not {self.memory} bytes")
        return self

    def check(self, name: str, stages: Mapping[str, section.StageConfig], where: Where) -> None:
        """Raise ConfigError for sources without packets, streams that share a file, and clips without events.

        Also raise it for packets that show what another stage hides.
        """
        streams = sorted(sources_of(stages)[name])
        if len(streams) > 1 and not has_field(self.path, "stream"):
            what = f"stage {name!r} records {' and '.join(streams)}, and {self.path} does not name the stream"
            raise ConfigError(what, where=where(("stages", name, "path")), fix="put {stream} into path")
        for stream in streams:
            source = stages[stream]
            kind = kind_of(source.source) if isinstance(source, section.SourceStage) else ""
            if kind and not self.annotated and not getattr(SOURCES.get(kind), "has_packets", False):
                raise no_packets(name, stream, where(("stages", name)))
        for other in sorted(upstream(stages, name)):
            if self.annotated != "only" and getattr(stages[other], "hides", False):
                what = f"stage {name!r} records what the camera sends, in which everything is seen that {other!r} hides"
                raise ConfigError(what, where=where(("stages", name)), fix="annotated: only, or use sink: video")
        if self.clips is None:
            return
        before = [stages[other] for other in upstream(stages, name)]
        makers = [one for one in before if isinstance(one, section.PackageStage | section.PythonStage)]
        if not makers:
            raise ConfigError(
                f"stage {name!r} records clips of events, but no stage before it makes any",
                where=where(("stages", name, "clips")),
                fix="let it listen to {stage: events, rules: …}, or leave clips: out to record everything",
            )
        if any(getattr(one, "rules", ()) for one in makers):  # the rules of other packages are not known
            check_rules(name, "records clips of", self.clips.rules, stages, where(("stages", name, "clips")))

    def make(self, name: str, context: Context) -> RecordSink:
        """Return the sink. Raises ConfigError for a source without packets."""
        return RecordSink(name, self, context)


def no_packets(name: str, stream: str, where: str) -> ConfigError:
    """Return the error for a source without packets."""
    return ConfigError(
        f"stage {name!r} records packets, and source {stream!r} has none",
        why="only video files and network streams have packets; its images come as pixels",
        where=where,
        fix=_FIX,
    )


class RecordSink:
    """Sink that records the packets of sources, or the drawn images of results, or both."""

    def __init__(self, name: str, config: Record, context: Context) -> None:
        self._name, self._where, self._config, self._clock = name, f"stages.{name}", config, context.clock
        self._waits = not any(source.live for source in context.sources.values())  # no image may be lost
        taps = {one: tap for one, source in context.sources.items() if (tap := getattr(source, "tap", None))}
        self._taps: Mapping[str, Tap] = {} if config.annotated == "only" else taps
        for stream in context.sources:
            if stream not in self._taps and not config.annotated:
                raise no_packets(name, stream, self._where)
        self._encoders = EncoderChoice(self._where, config.codec, config.encode)
        self._annotated = EncodedVideos(self._encoders, config.quality) if config.annotated else None
        self._writing = StepThread(_PERIOD_S)
        self._events: queue.SimpleQueue[tuple[Event, str, int, int]] = queue.SimpleQueue()
        self._passed: dict[str, tuple[int, int]] = {}
        path, rules = config.path, config.rules(context)
        if config.clips is not None:
            rules = replace(rules, endless=False)  # clips end
        elif config.rotate is None:
            rules = replace(rules, rotate_s=_ROTATE_S)
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
            self._encoders.check()
        self._index = Index(self._name, self._config.path)
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
        if self._config.clips is None:
            return
        found = result.latest(Events)
        for event in found.events if found is not None else ():
            self._events.put((event, frame.stream, frame.timestamp_ns, frame.media_ns))
        self._passed[frame.stream] = (frame.timestamp_ns, frame.media_ns)

    def close(self) -> None:
        """Write what is queued, and finish every file."""
        if self._annotated is not None:
            try:
                for stream in tuple(self._annotated.streams):
                    for sample in self._annotated.end(stream):
                        self._annotated_inbox(stream).put(sample)
            finally:
                self._annotated.close()
        if not self._writing.stop():
            for name, inbox in self._inboxes.items():
                self._taps[name].leave(inbox)
        self._inboxes = {}
        self._writing.check()

    def _listen(self) -> dict[str, Inbox]:
        return {name: tap.listen(self._config.memory, self._writing.wake) for name, tap in self._taps.items()}

    def _track(self, stream: str, inbox: Inbox, is_annotated: bool = False) -> Track:
        return Track(
            stream,
            inbox,
            self._annotated_files if is_annotated else self._files,
            self._index,
            self._clock,
            self._where,
            clips=None if self._config.clips is None else Clips(self._config.clips),
            memory_bytes=self._config.memory,
            waits=self._waits if is_annotated else self._taps[stream].waits,
            is_annotated=is_annotated,
        )

    def _annotated_inbox(self, stream: str) -> Inbox:
        if stream not in self._annotated_tracks:
            inbox = Inbox(self._config.memory, self._waits, self._writing.wake)
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
