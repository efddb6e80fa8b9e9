"""The keys of recordings in a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from edgert.config import stages as section
from edgert.config.fields import Names, OutputPath, PositiveBytes, Seconds, Section
from edgert.config.flow import Where, sources_of, upstream
from edgert.errors import ConfigError
from edgert.policy import OnError
from edgert.stages import kinds
from edgert.stages.sink.retention import has_field
from edgert.stages.zones.section import check_rules

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context

_ROTATE = kinds.Rotate.model_validate({"every": "10m"})
_FIX = "annotated: only encodes what results show; or use sink: video"


class ClipsSection(Section):
    """Section of clips around events."""

    before: Seconds = Field(default=5.0, description="what is kept of the time before an event")
    after: Seconds = Field(default=5.0, ge=0, description="what is kept of the time after it")
    longest: Seconds = Field(default=300.0, ge=1, description="longest clip; another one begins then")
    rules: Names = Field(default=(), description="rules whose events are kept; default: all")


class Record(kinds.FileSink):
    """The camera's own packets, neither decoded nor encoded: see [recording](recording.md)."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "restart")
    why_not: ClassVar[str] = "what is recorded after a failure begins anew"
    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = True
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
        from edgert.stages.sink.muxed_file import FORMATS

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
        from edgert.kinds import SOURCES
        from edgert.stages.source.kinds import kind_of

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

    def make(self, name: str, context: Context) -> Stage:
        """Return the sink. Raises ConfigError for a source without packets."""
        from edgert.stages.sink.record.annotated import AnnotatedVideo
        from edgert.stages.sink.record.clips import Clips
        from edgert.stages.sink.record.sink import RecordSink

        taps = {one: tap for one, source in context.sources.items() if (tap := getattr(source, "tap", None))}
        taps = {} if self.annotated == "only" else taps
        for stream in context.sources:
            if stream not in taps and not self.annotated:
                raise no_packets(name, stream, f"stages.{name}")
        own = self if self.clips is not None or self.rotate is not None else self.model_copy(update={"rotate": _ROTATE})
        annotated = AnnotatedVideo(f"stages.{name}", self.quality, self.codec, self.encode) if self.annotated else None
        clips = None if self.clips is None else partial(Clips, **self.clips.model_dump())
        about = name, self.path, own.rules(context), taps, annotated, context
        return RecordSink(*about, memory_bytes=self.memory, clips=clips)


def no_packets(name: str, stream: str, where: str) -> ConfigError:
    """Return the error for a source without packets."""
    return ConfigError(
        f"stage {name!r} records packets, and source {stream!r} has none",
        why="only video files and network streams have packets; its images come as pixels",
        where=where,
        fix=_FIX,
    )
