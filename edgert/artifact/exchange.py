"""Two paths that change places in one step, so that neither is missing for a moment."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any

_HERE = -100  # AT_FDCWD of linux/fcntl.h: paths are as open() takes them
_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
"""What renameat2 says where the kernel or the file system has no exchange (man 2 renameat2)."""


def exchange(one: Path, other: Path) -> bool:
    """Lets two files or folders of one file system change places; False where the system cannot, and nothing changed.

    Raises:
        OSError: one of them is missing, or may not be renamed.
    """
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one))


@cache
def _renameat2() -> Any:
    """The C library's function, of glibc 2.28 and later; None where there is none."""
    library = ctypes.CDLL(None, use_errno=True)
    found: Any = getattr(library, "renameat2", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return found
