"""Outputs that readers of :mod:`edgert.stages.gpu` decode, on a GPU or on the processor, beside the host's decoders."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from edgert.backend.gpu import GpuTensor
from edgert.errors import ModelError
from edgert.stages.crop import Geometry
from edgert.stages.gpu.kernels import Kernels

NETWORK = (160, 96)
CELLS = 20 * 12 + 10 * 6 + 5 * 3
GEOMETRY = Geometry(3.0, 3.0, -7.0, 2.0, NETWORK, (0.0, 0.0, 470.0, 280.0))
POISON = 0xC9


def read_on_gpu(
    kernels: Kernels,
    reader: type,
    decoder: Any,
    values: Any,
    runs: int = 1,
    geometry: Geometry = GEOMETRY,
    geometries: Sequence[Geometry] = (),
    before: Any = None,
) -> Any:
    """The records of a batch of one output, or of several; what the reader has not written of its answers is poison.

    Args:
        geometries: of each image in the last run, where they are not all ``geometry``.
        before: another decoder that the reader is made for; it takes ``decoder`` before its last run.
    """
    device, network = kernels.device, geometry.network
    stream, outputs = device.stream(), []
    for array in several(values):
        block = device.device_block(array.nbytes)
        with device:
            device.driver.memcpy_htod(block.address, np.ascontiguousarray(array))
        outputs.append(GpuTensor("out", array.shape, array.dtype.name, block))
    device.synchronize()
    made = reader(before or decoder, outputs, network, kernels)
    try:
        for run in range(runs):
            own = geometries if geometries and run == runs - 1 else [geometry] * made.rows
            if before is not None and run == runs - 1:
                stream.synchronize()
                assert made.accepts(decoder)
                made.switch_decoder(decoder)
            with device:
                device.driver.memset_d8_async(made._out.address, POISON, made._out.nbytes, stream.raw)
            made.set_transforms(own)
            made.enqueue(made.rows, stream)
        stream.synchronize()
        return made.read(own)
    finally:
        made.close()
        for output in outputs:
            output.block.release()


def several(values: Any) -> Sequence[Any]:
    return values if isinstance(values, tuple) else (values,)


def why_not(reader: type, decoder: Any, shape: tuple[int, ...], dtype: str, network: tuple[int, int] = NETWORK) -> str:
    with pytest.raises(ModelError, match="cannot be decoded on the GPU") as caught:
        reader(decoder, [GpuTensor("out", shape, dtype, cast("Any", None))], network, None)
    return caught.value.why or ""


def same(found: Any, wanted: Any, **tolerance: float) -> None:
    assert type(found) is type(wanted)
    for name in type(wanted).__dataclass_fields__:
        one, other = getattr(found, name), getattr(wanted, name)
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype and one.shape == other.shape, name
            np.testing.assert_allclose(one, other, rtol=tolerance.get(name, 0), atol=tolerance.get(name, 0))
        elif isinstance(other, tuple) and other and not isinstance(other[0], str | float | int):
            assert len(one) == len(other)
            for each, wanted_one in zip(one, other, strict=True):
                same(each, wanted_one)
        else:
            assert one == other


def like_the_host(
    kernels: Kernels,
    reader: type,
    decoder: Any,
    values: Any,
    geometry: Geometry = GEOMETRY,
    before: Any = None,
    **tolerance: float,
) -> Sequence[Any]:
    """Every record is what the decoder makes of that image; returns them."""
    found: Sequence[Any] = read_on_gpu(kernels, reader, decoder, values, 2, geometry, before=before)
    for record, *image in zip(found, *several(values), strict=True):
        with np.errstate(all="ignore"):
            same(record, decoder(image, geometry), **tolerance)
    return found
