"""Reading of NumPy's file format from untrusted bytes; the header is checked against their number."""

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt


def read_array(data: bytes, most_bytes: int) -> npt.NDArray[Any]:
    """Return the array of a ``.npy`` file, as a view of the file's bytes ``data``.

    Raises:
        ValueError: it is no such file, contains objects, is larger than ``most_bytes``, or does not match its header.
    """
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes >> 20} MiB")
    file = io.BytesIO(data)
    try:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
    except Exception as error:  # NumPy gives the header to Python's parser, which may raise anything
        raise ValueError(f"it is no .npy: {type(error).__name__}") from error
    count, begin = math.prod(shape), file.tell()
    if dtype.hasobject or count < 0 or count * dtype.itemsize != len(data) - begin:
        raise ValueError(f"it says {list(shape)} of {dtype}, and has {len(data) - begin} bytes")
    return np.frombuffer(data, dtype, count, begin).reshape(shape, order="F" if is_fortran else "C")
