"""The keys that all sinks of live video have in a pipeline file."""

from typing import Literal

from pydantic import Field

from edgert.stages.context import Context
from edgert.stages.kinds import ShowsImages
from edgert.stages.sink.encoder_choice import EncoderChoice
from edgert.stages.sink.stream.broadcast import Wanted


class Streams(ShowsImages):
    """Options common to sinks that stream; see [streaming](streaming.md)."""

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
        return EncoderChoice(f"stages.{name}", "h264", self.encode, live=True)

    def wanted(self, context: Context) -> Wanted:
        """Return the requested properties of the video."""
        return Wanted(self.width, self.fps, round(self.bitrate * 1e6), context.rate_hz)
