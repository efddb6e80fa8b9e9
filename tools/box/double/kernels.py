"""NumPy doubles of edgert's kernels in a box: images to an engine's input, and its outputs to records.

A compiled kernel is the options that it was compiled with, which is what the double of NVRTC gives. Structs are those
of ``preprocess.cu``, ``decode.cu``, ``classes.cu`` and ``maps.cu``; numbers are those of the CPU path, within one gray
level. Oriented boxes and masks of objects are not here.
"""

from __future__ import annotations

import ctypes
import re
import struct
from functools import partial
from typing import Any

import cv2
import numpy as np
from pycuda.cuda_double import CudaDouble, CudaError

_HEADER, _JOB, _HEAD = struct.Struct("=Qq6i6f"), struct.Struct("=3Q12i12f"), struct.Struct("=5Qq8i3f4x")
_VALUES = (np.float32, np.float16, np.uint8, np.int8)
_METHODS = (cv2.INTER_LINEAR, cv2.INTER_NEAREST, cv2.INTER_AREA, cv2.INTER_CUBIC)
_HEADS = ("YoloX", "YoloV5", "YoloV8")
_JOB_OF_CLASSES, _MAPS = struct.Struct("=5Qq4i"), struct.Struct("=2Qq4ifii4x")
_PEAK = np.dtype([("cell", "i4"), ("around", "f4", (3, 3)), ("value", "f4"), ("unused", "i4")])
_AS_IT_IS = 1.0, 1.0, 0.0, 0.0  # scale and offset
_MANNERS: Any = ("auto", "softmax", "logits")


class Gpu(CudaDouble):
    """Double of a GPU from the tests, with kernels that compute."""

    def module_from_buffer(self, binary: bytes) -> _Module:
        self.check()
        return _Module(self, {name: int(value) for name, value in re.findall(r"-D(\w+)=(\d+)", binary.decode())})

    def _inside(self, address: int, nbytes: int) -> int:
        return address  # video memory is not allocated here


class _Module:
    def __init__(self, gpu: Gpu, made: dict[str, int]) -> None:
        self._gpu, self._made = gpu, made

    def get_function(self, name: str) -> _Function:
        if name not in _KERNELS:
            raise CudaError(f"the double of the GPU has no kernel {name!r}, only {', '.join(_KERNELS)}")
        return _Function(self._gpu, self._made, name)


class _Function:
    num_regs, local_size_bytes = 32, 0

    def __init__(self, gpu: Gpu, made: dict[str, int], name: str) -> None:
        self._gpu, self._made, self._name = gpu, made, name

    def prepared_async_call(self, grid: Any, block: Any, stream: Any, argument: bytes) -> None:
        self._gpu.check()
        stream.put(lambda: _KERNELS[self._name](self._made, grid, argument))


def _at(address: int, nbytes: int) -> Any:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def _preprocess(made: dict[str, int], grid: Any, argument: bytes) -> None:
    out, per_image, per_channel, per_row, per_pixel, width, height, pad, *normal = _HEADER.unpack_from(argument)
    gray, dtype = made["ORDER"] == 2, np.dtype(_VALUES[made["VALUE"]])
    scale, bias = (np.array(part[: 1 if gray else 3], np.float32) for part in (normal[:3], normal[3:]))
    for slot in range(grid[2]):
        *numbers, row = _JOB.unpack_from(argument, _HEADER.size + slot * _JOB.size)[:15]
        matrix = np.array(_JOB.unpack_from(argument, _HEADER.size + slot * _JOB.size)[15:], np.float32).reshape(3, 4)
        left, top, *size = numbers[10:14]
        planes = [cv2.resize(one, size, interpolation=_METHODS[made["METHOD"]]) for one in _planes(made, numbers)]
        levels = np.dstack(planes).astype(np.float32)
        if made["SOURCE"] in (0, 1, 2):
            levels = np.floor(256 * (4 * levels @ matrix[:, :3].T + matrix[:, 3]))[..., : 1 if gray else 3]
        elif levels.shape[2] >= 3:
            red_first = levels[..., :3] if made["RED"] == 0 else levels[..., 2::-1]
            levels = red_first @ np.array([[0.299], [0.587], [0.114]]) if gray else red_first
        if made["ORDER"] == 1 and made["SOURCE"] in (3, 4):
            levels = levels[..., ::-1]
        image = np.full((height, width, len(scale)), pad, np.float32)
        image[top : top + size[1], left : left + size[0]] = np.clip(levels, 0, 255)
        image = image * scale + bias
        if dtype.kind in "iu":
            image = np.clip(np.rint(image), np.iinfo(dtype).min, np.iinfo(dtype).max)
        steps = [step * dtype.itemsize for step in (per_row, per_pixel, per_channel)]
        last = sum((count - 1) * step for count, step in zip(image.shape, steps, strict=True))
        memory = _at(out + row * per_image * dtype.itemsize, last + dtype.itemsize)
        memory.flags.writeable = True
        np.lib.stride_tricks.as_strided(memory[: dtype.itemsize].view(dtype), image.shape, steps)[...] = image


def _planes(made: dict[str, int], numbers: list[int]) -> list[Any]:
    """Return the planes of one image, (h, w, channels)."""
    addresses, pitches, (width, height, chroma_width, chroma_height) = numbers[:3], numbers[3:6], numbers[6:10]
    channels = {0: (1, 1, 1), 1: (1, 2), 2: (2,), 3: (made["PIXEL"],), 4: (1,)}[made["SOURCE"]]
    sizes = [(width, height), (chroma_width, chroma_height), (chroma_width, chroma_height)]
    found = []
    for address, pitch, (wide, high), each in zip(addresses, pitches, sizes, channels, strict=False):
        memory = _at(address, (high - 1) * pitch + wide * each)
        found.append(np.lib.stride_tricks.as_strided(memory, (high, wide, each), (pitch, each, 1)))
    if made["SOURCE"] == 2:  # two pixels of luma share their chroma
        (packed,) = found
        even = width // 2 * 2
        return [packed[..., 0], packed[:, 0:even:2, 1], packed[:, 1:even:2, 1]]
    return found


def _image(values: int, image: int, count: int, made: dict[str, int]) -> Any:
    """Return the numbers of one image of an output."""
    dtype = np.dtype(np.float16 if made["HALF"] else np.float32)
    return _at(values + image * count * dtype.itemsize, count * dtype.itemsize).view(dtype)


def _answer(out: int, row: int, pitch: int, *arrays: Any) -> None:
    """Write the first array's length in 16 bytes, then the arrays, each padded to its number of rows."""
    memory = _at(out + row * pitch, pitch)
    memory.flags.writeable = True
    memory[:4].view(np.int32)[0] = len(arrays[0][0])
    start = 16
    for array, most in arrays:
        memory[start:][: array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        start += most * array.itemsize * (array.shape[1] if array.ndim > 1 else 1)


def _suppress(made: dict[str, int], grid: Any, argument: bytes) -> None:
    from edgert.stages.crop import Geometry
    from edgert.stages.decode import yolo
    from edgert.stages.decode.detection import Detector

    values, _, _, out, ways, per_image, boxes, classes, extras, *rest = _HEAD.unpack(argument)
    *size, limit, _, pitch, score, iou, _ = rest
    if made["ROTATED"]:
        raise CudaError("the double of the GPU has no oriented boxes")
    whole = Geometry(*_AS_IT_IS, (size[0], size[1]), (-1e9, -1e9, 1e9, 1e9))
    head, names, agnostic = getattr(yolo, _HEADS[made["HEAD"]])(), tuple(map(str, range(classes))), made["AGNOSTIC"]
    detector = Detector(head, score, iou, limit, names, agnostic=bool(agnostic))
    numbers = per_image // boxes
    # Scale, offset and bounds of each image, from pixels of the network to its own.
    back = _at(ways, grid[0] * 32).view(np.float32).reshape(-1, 8) if ways else ()
    for image in range(grid[0]):
        output = _image(values, image, per_image, made)
        *way, left, top, right, bottom = back[image] if ways else (*_AS_IT_IS, *whole.bounds)
        placed = Geometry(*way, whole.network, (left, top, right, bottom)).boxes
        if extras:  # a body's points; masks take a kernel that is not here
            bodies = yolo.YoloPose(score, iou, limit)([output.reshape(numbers, boxes)], whole)
            points, kinds = bodies.points.reshape(len(bodies), extras), np.zeros(len(bodies), np.int32)
            boxes_left = (placed(bodies.boxes), limit)
            _answer(out, image, pitch, boxes_left, (bodies.scores, limit), (kinds, limit), (points, limit))
            continue
        found = detector([output.reshape((numbers, boxes) if made["COLUMNS"] else (boxes, numbers))], whole)
        _answer(out, image, pitch, (placed(found.boxes), limit), (found.scores, limit), (found.classes, limit))


def _classes(made: dict[str, int], grid: Any, argument: bytes) -> None:
    from edgert.stages.crop import Geometry
    from edgert.stages.decode.classify import Classify

    values, _, _, _, out, stride, _, top, manner, pitch = _JOB_OF_CLASSES.unpack(argument)
    whole = Geometry(1.0, 1.0, 0.0, 0.0, (1, 1), (0.0, 0.0, 1.0, 1.0))
    for row in range(grid[1]):
        found = Classify(_MANNERS[manner], top)([_image(values, row, stride, made)], whole)
        _answer(out, row, pitch, (found.scores, top), (found.classes, top))


def _codes(function: str, made: dict[str, int], grid: Any, argument: bytes) -> None:
    from edgert.stages.decode.maps import argmax_channels

    values, out, stride, classes, cells, _, per_cell, threshold, _, pitch = _MAPS.unpack(argument)
    dtype = np.dtype(f"i{made['INTEGER']}" if made["INTEGER"] else np.float16 if made["HALF"] else np.float32)
    for image in range(grid[1]):
        numbers = _at(values + image * stride * dtype.itemsize, stride * dtype.itemsize).view(dtype)
        scores = numbers.reshape(classes, cells) if per_cell == 1 else numbers.reshape(cells, classes).T
        memory = _at(out + image * pitch, cells)
        memory.flags.writeable = True
        if function == "best_class":
            memory[:] = argmax_channels(scores[:, None].astype(np.float32))[0]
        else:
            memory[:] = scores[0] >= threshold if function == "reaches" else scores[0].astype(np.uint8)


def _peaks(made: dict[str, int], grid: Any, argument: bytes) -> None:
    values, out, stride, count, cells, _, _, _, width, pitch = _MAPS.unpack(argument)
    for image in range(grid[1]):
        maps = _image(values, image, stride, made).astype(np.float32).reshape(count, cells // width, width)
        memory = _at(out + image * pitch, count * _PEAK.itemsize)
        memory.flags.writeable = True
        for one, found in zip(maps, memory.view(_PEAK), strict=True):
            cell = int(one.argmax())
            y, x = (min(max(at, 1), most - 2) for at, most in zip(divmod(cell, width), one.shape, strict=True))
            found["cell"], found["around"] = cell, one[y - 1 : y + 2, x - 1 : x + 2]
            found["value"] = one.reshape(-1)[cell]


def _nothing(made: dict[str, int], grid: Any, argument: bytes) -> None:
    """Do nothing, as ``suppress`` does the work of ``candidates``, too."""


_KERNELS: dict[str, Any] = {
    "preprocess": _preprocess,
    "candidates": _nothing,
    "suppress": _suppress,
    "classes": _classes,
    "peaks": _peaks,
    **{name: partial(_codes, name) for name in ("best_class", "reaches", "narrow")},
}
