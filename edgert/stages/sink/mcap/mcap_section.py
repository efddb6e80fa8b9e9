"""The keys of ``sink: mcap`` in a pipeline file."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from edgert.config import stages as section
from edgert.config.fields import Names, OutputPath, PositiveBytes, Seconds
from edgert.config.flow import Where
from edgert.errors import ConfigError
from edgert.policy import OnError
from edgert.stages import kinds
from edgert.stages.zones.section import check_rules

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context

_ROTATE = kinds.Rotate.model_validate({"every": "10m"})
_PARTS = 6
"""Finished files that hold the ring's seconds; one more is being written."""


class KeepRecordings(kinds.Keep):
    """Retention limits of recordings. With ``last``, only the seconds around a moment are recorded."""

    last: Seconds | None = Field(
        default=None, ge=1, le=3600, description="record only so much before an event, a failure or the end of the run"
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

    def make(self, name: str, context: Context) -> Stage:
        """Return the sink."""
        from edgert.runtime.decisions import Journal
        from edgert.stages.sink.mcap.camera_track import PacketTrack, PixelTrack
        from edgert.stages.sink.mcap.last_seconds import LastSeconds
        from edgert.stages.sink.mcap.mcap_sink import McapSink
        from edgert.stages.sink.output_file import Files
        from edgert.stages.sink.retention import Rules, fixed_folder

        journal = context.journal or Journal()  # the assembly always gives one to this kind
        waits = not any(source.live for source in context.sources.values())
        sources = dict(context.sources)

        def make_tracks(wake: threading.Event) -> dict[str, PacketTrack | PixelTrack]:
            made: dict[str, PacketTrack | PixelTrack] = {}
            for stream, source in sources.items():
                tap = None if self.pixels else getattr(source, "tap", None)
                if tap is not None:
                    made[stream] = PacketTrack(stream, tap, self.memory, wake)
                    continue
                pixels = made[stream] = PixelTrack(stream, self.memory, not source.live, wake)
                journal.pixels[stream] = pixels.put
            return made

        own = self if self.rotate is not None else self.model_copy(update={"rotate": _ROTATE})
        files, last = Files(self.path, own.rules(context), f"stages.{name}"), None
        if self.keep is not None and self.keep.last is not None:
            rules = Rules(keeps=True, endless=True, rotate_s=self.keep.last / _PARTS, keep_s=self.keep.last)
            ring = Files(fixed_folder(self.path) / f"{name}-ring/{{date}}-{{time}}.mcap", rules, f"stages.{name}")
            last = LastSeconds(f"stages.{name}", files, ring, self.keep.after, self.keep.rules)
            files = ring
        return McapSink(name, files, make_tracks, journal, context.clock, context.about, context.stats, waits, last)
