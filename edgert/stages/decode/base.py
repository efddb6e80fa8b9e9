"""What a decoder is: raw output tensors of one picture in, a typed record in source pixels out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgert.runtime.record import Record
from edgert.stages.geometry import Geometry

Array = npt.NDArray[Any]


class Decoder(Protocol):
    """Reads what a network wrote."""

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Record:
        """Decodes one picture.

        Args:
            outputs: the network's outputs in its own order, the batch dimension already taken away. They are views
                of bound memory: a record must not keep them.
            geometry: maps network pixels to source pixels.

        Raises:
            ModelError: the outputs do not have the shapes this decoder reads.
        """
        ...


def as_f32(array: Array) -> npt.NDArray[np.float32]:
    """The array itself when it is float32, otherwise a float32 copy (fp16 heads)."""
    return array.astype(np.float32, copy=False)
