"""The keys of ``sink: mcap`` in a pipeline file."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from edgert.config import stages as section
from edgert.config.fields import OutputPath, SomeBytes
from edgert.config.flow import Where
from edgert.errors import ConfigError
from edgert.policy import OnError
from edgert.stages import kinds

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context

_ROTATE = kinds.Rotate.model_validate({"every": "10m"})


class Mcap(kinds.FileSink):
    """The whole run, to be replayed: see [replay](replay.md)."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "restart")
    why_not: ClassVar[str] = "what is recorded after a failure begins anew"
    fields: ClassVar[tuple[str, ...]] = ("date", "time")
    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = False
    shows_images: ClassVar[bool] = False
    path: OutputPath = Field(description="`.mcap`; may hold `{date}`, `{time}`")
    rotate: Annotated[kinds.Rotate | None, kinds.mapping(**kinds.ROTATE)] = Field(
        default=None,
        description="`{size: 500MB, every: 10m}`: when the next file begins; default: every 10 minutes",
    )
    pixels: bool = Field(
        default=False, description="record decoded images, not packets: exact for cameras without packets, and large"
    )
    memory: SomeBytes = Field(default=64 << 20, description="per camera: packets or pixels that wait for the disk")

    @model_validator(mode="after")
    def _check_keys(self) -> Mcap:
        if self.path.suffix.lower() != ".mcap":
            raise ValueError(f"cannot write {self.path.name}; end it in .mcap")
        if self.memory < 1 << 20:
            raise ValueError(f"memory: at least 1MiB, not {self.memory} bytes")
        return self

    def check(self, name: str, stages: Mapping[str, section.StageConfig], where: Where) -> None:
        """Raise ConfigError for a second recording of the same run."""
        for other, stage in stages.items():
            if other != name and isinstance(stage, Mcap):
                what = f"stages {other!r} and {name!r} both record the run"
                raise ConfigError(what, where=where(("stages", name)), fix="keep one, and let it listen to all stages")

    def make(self, name: str, context: Context) -> Stage:
        """Return the sink."""
        from edgert.runtime.decisions import Journal
        from edgert.stages.sink.mcap.camera_track import PacketTrack, PixelTrack
        from edgert.stages.sink.mcap.mcap_sink import McapSink
        from edgert.stages.sink.output_files import Files

        journal = context.journal or Journal()  # the assembly makes one for this kind
        waits = not any(source.live for source in context.sources.values())
        sources = dict(context.sources)

        def tracks(wake: threading.Event) -> dict[str, PacketTrack | PixelTrack]:
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
        files = Files(self.path, own.rules(context), f"stages.{name}")
        return McapSink(name, files, tracks, journal, context.clock, context.about, context.stats, waits)
