"""The CUDA driver's own functions, for what PyCUDA does not have: loaded, called, and their errors understood."""

from __future__ import annotations

import ctypes
from typing import Any

from edgert.errors import DeviceError
from edgert.memory.cuda.library import is_lost, lost


def load_driver(library: str = "libcuda.so.1") -> Any:
    """The library of the driver. Raises DeviceError where there is none."""
    try:
        return ctypes.CDLL(library)
    except OSError as error:
        raise DeviceError("there is no CUDA driver", why=str(error)) from error


def call(library: Any, name: str, *arguments: Any, whose: str = "") -> None:
    """Calls one function, in whatever context is current.

    Args:
        whose: what it is called for, for messages.

    Raises:
        DeviceError: it failed, or this driver is too old to have it.
    """
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise DeviceError(
            f"the CUDA driver has no {name}", why="it is older than that", fix="update the driver"
        ) from error
    code = function(*arguments)
    if code:
        why, subject = _text(library, code), f" for {whose}" if whose else ""
        raise lost(f"{name}{subject}", why) if is_lost(why) else DeviceError(f"{name} failed{subject}", why=why)


def _text(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    return text.value.decode() if text.value else f"CUDA error {code}"
