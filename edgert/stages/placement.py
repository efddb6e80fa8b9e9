"""Where a picture lands in the network's input: which part of it, at what size, with what border."""

from __future__ import annotations

from dataclasses import dataclass

from edgert.config import InputConfig
from edgert.errors import StageError
from edgert.runtime import Frame
from edgert.stages.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Placement:
    """A part of a frame and its rectangle in the network's input.

    Attributes:
        frame: the part of the frame that is used; a view.
        left, top, width, height: network pixels it is resized to.
        geometry: the way back to source pixels.
    """

    frame: Frame
    left: int
    top: int
    width: int
    height: int
    geometry: Geometry

    @property
    def rectangle(self) -> tuple[int, int, int, int]:
        """left, top, width, height."""
        return self.left, self.top, self.width, self.height


def place(frame: Frame, network: tuple[int, int], config: InputConfig) -> Placement:
    """Places a frame in a network input of (width, height) pixels.

    Raises:
        StageError: ``resize: none`` and the frame has another size.
    """
    net_w, net_h = network
    width, height, left, top = net_w, net_h, 0, 0
    if config.resize == "letterbox":
        ratio = min(net_w / frame.width, net_h / frame.height)
        width, height = max(round(frame.width * ratio), 1), max(round(frame.height * ratio), 1)
        if config.anchor == "center":
            left, top = (net_w - width) // 2, (net_h - height) // 2
    elif config.resize == "center_crop":
        frame = _center(frame, net_w / net_h, config.crop)
    elif config.resize == "none" and (frame.width, frame.height) != network:
        raise StageError(
            f"a frame of {frame.width}x{frame.height} does not fit a model input of {net_w}x{net_h}",
            why="resize: none passes frames on as they are",
            where=f"stage {frame.stream!r}",
            fix="write resize: letterbox, stretch or center_crop",
        )
    return Placement(frame, left, top, width, height, _geometry(frame, network, (left, top, width, height)))


def _center(frame: Frame, aspect: float, part: float) -> Frame:
    """The centred part of the network's aspect, ``part`` as large as would fit."""
    width = min(frame.width, frame.height * aspect) * part
    height = width / aspect
    x, y = round((frame.width - width) / 2), round((frame.height - height) / 2)
    return frame.crop(x, y, x + max(round(width), 1), y + max(round(height), 1))


def _geometry(frame: Frame, network: tuple[int, int], rectangle: tuple[int, int, int, int]) -> Geometry:
    left, top, width, height = rectangle
    scale_x, scale_y = frame.width / width, frame.height / height
    x, y = frame.origin
    return Geometry(
        scale_x,
        scale_y,
        x - left * scale_x,
        y - top * scale_y,
        network,
        (float(x), float(y), float(x + frame.width), float(y + frame.height)),
    )
