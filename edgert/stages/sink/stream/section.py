"""The keys of sinks that stream live video, in a pipeline file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from edgert import installation
from edgert.config import stages as section
from edgert.config.flow import Where, sources_of
from edgert.errors import ConfigError
from edgert.stages.kinds import PageTls, check_token
from edgert.stages.sink.client_limits import is_loopback

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context
    from edgert.stages.sink.encoder_choice import EncoderChoice
    from edgert.stages.sink.stream.broadcast import Wanted

_PATH = re.compile(r"(/([A-Za-z0-9._~-]|\{stream\})+)+")


class Streams(section.SinkStage):
    """Options common to sinks that stream; see [streaming](streaming.md)."""

    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = True
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on; set a password before you open it to the network",
    )
    width: int = Field(default=1280, ge=16, le=8192, description="maximum width; larger images are scaled down")
    fps: float | None = Field(default=None, gt=0, le=240, description="maximum images per second; default: all")
    bitrate: float = Field(default=4.0, ge=0.05, le=200, description="megabits per second")
    encode: Literal["auto", "cpu", "gpu"] = Field(default="auto", description="as of `sink: video`")

    def choice(self, name: str) -> EncoderChoice:
        """Return the chooser of encoders."""
        from edgert.stages.sink.encoder_choice import EncoderChoice

        return EncoderChoice(f"stages.{name}", "h264", self.encode, live=True)

    def wanted(self, context: Context) -> Wanted:
        """Return the requested properties of the video."""
        from edgert.stages.sink.stream.broadcast import Wanted

        return Wanted(self.width, self.fps, round(self.bitrate * 1e6), context.rate_hz)


class Rtsp(Streams):
    """An RTSP server for players and recorders: see [streaming](streaming.md)."""

    port: int = Field(default=8554, ge=0, le=65535, description="0 picks a free one, which is logged")
    path: str = Field(default="/{stream}", description="path of the address; `{stream}` makes one per stream")
    user: str = Field(default="", description="user name of viewers; default: anyone")
    password: str = Field(default="", repr=False, description="${VAR} from the environment; never printed")

    @model_validator(mode="after")
    def _check_keys(self) -> Rtsp:
        if not _PATH.fullmatch(self.path):
            raise ValueError("path: expected letters, digits and {stream} behind a slash, like /cameras/{stream}")
        if bool(self.user) != bool(self.password):
            raise ValueError("user: and password: must be given together")
        if not self.user and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} can be reached from the network; add user: and password:, or host: 127.0.0.1"
            )
        return self

    def check(self, name: str, stages: Mapping[str, section.StageConfig], where: Where) -> None:
        """Raise ConfigError for several streams at one path."""
        several = sorted(sources_of(stages)[name])
        if len(several) > 1 and "{stream}" not in self.path:
            what = f"{self.path} would show {len(several)} streams: {', '.join(several)}"
            fix = f"path: {self.path}/{{stream}}, or give each stream a sink of its own"
            raise ConfigError(what, where=where(("stages", name, "path")), fix=fix)

    def make(self, name: str, context: Context) -> Stage:
        """Return the sink."""
        from edgert.stages.sink.stream.rtsp_server import RtspSink

        login = self.user, self.password
        return RtspSink(name, (self.host, self.port), self.path, login, self.choice(name), self.wanted(context))


class Webrtc(Streams):
    """A WebRTC page with every stream, and WHEP for players: see [streaming](streaming.md)."""

    port: int = Field(default=8889, ge=0, le=65535, description="0 picks a free one, which is logged")
    token: str = Field(default="", repr=False, description="as of `sink: http`")
    tls: PageTls | None = Field(default=None, description="as of `sink: http`")

    @model_validator(mode="after")
    def _check_keys(self) -> Webrtc:
        if "token" in self.model_fields_set:
            check_token(self.token)
        if not self.token and not is_loopback(self.host):
            raise ValueError(f"host: {self.host} can be reached from the network; add token:, or host: 127.0.0.1")
        return self

    def make(self, name: str, context: Context) -> Stage:
        """Return the sink. Raises ConfigError where aiortc is not installed."""
        if find_spec("aiortc") is None:
            what = "sink 'webrtc' needs the package aiortc"
            raise ConfigError(what, where=f"stages.{name}", fix=installation.command("webrtc"), code="E107")
        from edgert.stages.sink.stream.whep import WebrtcSink
        from edgert.stages.sink.web.http_server import Access

        access = Access(self.token, self.tls.context() if self.tls is not None else None)
        return WebrtcSink(name, (self.host, self.port), access, self.choice(name), self.wanted(context))
