"""Keys of ``sink: ros2`` in a pipeline file."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from edgert.config import stages as section

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context

_NAMESPACE = re.compile(r"(/([A-Za-z_{][A-Za-z0-9_{}]*))+")
_FIELDS = {"pipeline", "stream"}


class Ros2(section.SinkStage):
    """Topics of ROS 2: see [ROS 2](ros2.md)."""

    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = True
    namespace: str = Field(
        default="/{pipeline}/{stream}", description="of the topics; may hold `{pipeline}` and `{stream}`"
    )
    image: Literal["raw", "jpeg"] | None = Field(
        default=None, description="publish images too, with drawings where there are some; default: none"
    )
    frame_id: str = Field(default="", description="of every header; default: the camera's, else the stream")
    reliability: Literal["reliable", "best_effort"] = Field(default="reliable", description="of detections and classes")
    use_sim_time: bool = Field(default=False, description="stamps are of `/clock`, where the source has none of ROS")
    zenoh: str = Field(default="", description="without ROS: a router of rmw_zenoh, such as `ros2+zenoh://localhost`")

    @field_validator("namespace")
    @classmethod
    def _is_namespace(cls, text: str) -> str:
        unknown = set(re.findall(r"\{(.*?)\}", text)) - _FIELDS
        if unknown or not _NAMESPACE.fullmatch(text):
            raise ValueError("expected names of letters, digits and _ behind slashes, like /{pipeline}/{stream}")
        return text

    @property
    def reads_images(self) -> bool:
        """Whether images are published."""
        return self.image is not None

    def make(self, name: str, context: Context) -> Stage:
        """Return the sink. Raises DeviceError if rclpy or Zenoh is missing."""
        from edgert.stages.ros2.ros_sink import RosSink
        from edgert.stages.ros2.ros_source import SENT, link_to

        link = link_to(self.zenoh or "ros2:", context.pipeline, self.use_sim_time, f"stages.{name}", SENT)
        return RosSink(
            name,
            link,
            context,
            namespace=partial(topic_of, self.namespace, context.pipeline),
            image=self.image,
            frame_id=self.frame_id,
            reliable=self.reliability == "reliable",
        )


def topic_of(pattern: str, pipeline: str, stream: str) -> str:
    """Return the namespace of a stream's topics, with names that ROS 2 allows."""
    plain = {"pipeline": _plain(pipeline), "stream": _plain(stream)}
    return re.sub(r"\{(.*?)\}", lambda match: plain[match[1]], pattern)


def _plain(name: str) -> str:
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "camera"
    return f"_{text}" if text[0].isdigit() else text
