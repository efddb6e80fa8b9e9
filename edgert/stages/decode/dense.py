"""Outputs with a number per pixel: a depth map, another image, or an anomaly map."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np

from edgert.errors import ModelError
from edgert.runtime.frame import U8
from edgert.runtime.records import AnomalyMap, DepthMap, OutputImage
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Array, Shapes, Size, as_f32, shapes_of
from edgert.stages.decode.guess import Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.maps import crop_padding, map_layout, plane_size


def covers(shape: tuple[int, ...], network: Size) -> bool:
    """Return whether a map of one channel has the network's proportions."""
    size = plane_size(shape)
    return size is not None and abs(size[1] * network[1] - size[0] * network[0]) <= 0.1 * size[0] * network[0]


def _plane(array: Array) -> Array:
    return array.reshape(plane_size(array.shape) or ())


@dataclass(frozen=True, slots=True)
class Depth:
    """One output [1, h, w], [h, w] or [h, w, 1].

    Attributes:
        depth: ``metric`` in meters; ``inverse``, without a unit and greater for nearer points, as of MiDaS and Depth
            Anything; ``relative``, greater for farther points.
    """

    depth: Literal["metric", "inverse", "relative"] = "inverse"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if signature.is_one_channel:
            is_named = any(word in signature.names for word in ("depth", "disp"))
            yield Fit("one channel over the image can be depth", 4 if is_named else 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        if len(shapes) != 1 or not covers(shapes[0], network):
            raise wrong_shapes(f"depth: {self.depth}", "one output [1, h, w]", shapes, network)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> DepthMap:
        self.check(shapes_of(outputs), geometry.network)
        cut, region = crop_padding(_plane(outputs[0]), geometry)
        return DepthMap(cut.astype(np.float32), region, self.depth)


_SCALES = {"unit": (255.0, 0.0), "byte": (1.0, 0.0), "signed": (127.5, 127.5)}


@dataclass(frozen=True, slots=True)
class ImageToImage:
    """One output [3, h, w] or [h, w, 3], or of one channel for gray, of any size.

    Attributes:
        image: range of the numbers: ``unit`` 0–1, ``byte`` 0–255, ``signed`` -1–1. Others are clipped to it.
        color: order of the channels.
    """

    image: Literal["unit", "byte", "signed"] = "unit"
    color: Literal["rgb", "bgr"] = "rgb"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        for channels, height, width, order in signature.maps:
            stride = signature.stride(height, width)
            if stride is not None and ((channels == 3 and stride <= 1) or (channels == 1 and stride < 1)):
                size = "the image's size" if stride == 1 else "a larger size"
                yield Fit(f"{channels} channel{'s' if channels > 1 else ''} of {size}, {order}", 4)

    def check(self, shapes: Shapes, network: Size) -> None:
        layout = map_layout(shapes[0], network) if len(shapes) == 1 else None
        channels = shapes[0][0 if layout == "chw" else -1] if layout in ("chw", "hwc") else 1
        if layout is None or channels not in (1, 3) or min(shapes[0][-2:]) < 1:
            raise wrong_shapes(f"image: {self.image}", "one output [3, h, w] or [h, w, 3]", shapes, network)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> OutputImage:
        self.check(shapes_of(outputs), geometry.network)
        values, (scale, offset) = as_f32(outputs[0]), _SCALES[self.image]
        layout = map_layout(values.shape, geometry.network)
        cut, region = crop_padding(values.transpose(1, 2, 0) if layout == "chw" else values, geometry)
        planes = [cut] if cut.ndim == 2 else [cut[..., channel] for channel in range(cut.shape[2])]
        # One pass clips, rounds and converts.
        bytes_ = [
            cv2.addWeighted(np.ascontiguousarray(plane), scale, plane, 0, offset, dtype=cv2.CV_8U) for plane in planes
        ]
        order = bytes_[::-1] if self.color == "rgb" else bytes_
        pixels: U8 = cv2.merge(order if len(order) == 3 else order * 3)  # type: ignore[assignment]
        return OutputImage(pixels, region)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Anomaly map [1, h, w], and perhaps one score for the image, in any order.

    Anomalib exports ``anomaly_map`` and ``pred_score`` (https://anomalib.readthedocs.io), with a label and a mask of
    booleans, which are not read. Without a score, the highest value of the map is the image's.

    Attributes:
        threshold: score from which the image is anomalous.
    """

    threshold: float = 0.5

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        is_named = "anomal" in signature.names or "pred_score" in signature.names
        found = None if signature.network is None else _map_and_score(signature.shapes, signature.network)
        if found is not None and (found[1] is not None or is_named):
            yield Fit("a map over the image, and one number", 3 + is_named)

    def check(self, shapes: Shapes, network: Size) -> None:
        if _map_and_score(shapes, network) is None:
            raise wrong_shapes("anomaly: map", "a map [1, h, w], and perhaps a score", shapes, network)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> AnomalyMap:
        self.check(shapes_of(outputs), geometry.network)
        floats = [output for output in outputs if output.dtype.kind == "f"]  # labels and masks are booleans
        places = _map_and_score(shapes_of(floats), geometry.network)
        if places is None:
            raise ModelError("the model's anomaly map is not of floats", why=f"its type is {outputs[0].dtype}")
        cut, region = crop_padding(_plane(floats[places[0]]), geometry)
        scores = cut.astype(np.float32)
        score = scores.max() if places[1] is None else floats[places[1]].reshape(-1)[0]
        return AnomalyMap(scores, region, float(score), self.threshold)


def _map_and_score(shapes: Shapes, network: Size) -> tuple[int, int | None] | None:
    """Return the indices of the first map and the first single number (or None); None for other outputs."""
    maps = [index for index, shape in enumerate(shapes) if covers(shape, network)]
    single = [index for index, shape in enumerate(shapes) if all(size == 1 for size in shape)]
    if not maps or len(maps) + len(single) != len(shapes):
        return None
    return maps[0], single[0] if single else None
