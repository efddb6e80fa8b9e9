"""The cores of this machine as accelerators, ``cpu0``, ``cpu1`` …, and threads that stay on one of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from edgert.board.host import core_quota
from edgert.errors import DeviceError, cause


def core_accelerators(root: Path = Path("/")) -> Mapping[str, int]:
    """Accelerator → the kernel's number of its core, one for each core that this process may keep busy.

    Numbered from 0 whatever cores they are, so that a pipeline file fits every machine with as many of them. Empty
    where threads cannot be pinned, as on macOS.
    """
    if not hasattr(os, "sched_getaffinity"):
        return {}
    cores = sorted(os.sched_getaffinity(os.getpid()))  # the main thread's: a pinned thread sees its own core alone
    quota = core_quota(root)
    granted = max(1, math.ceil(quota)) if quota else len(cores)
    return {f"cpu{number}": core for number, core in enumerate(cores[:granted])}


def pin(core: int) -> frozenset[int]:
    """Keeps the calling thread on one core; returns the cores it had, for :func:`unpin`.

    Threads that it starts afterwards inherit this. Raises DeviceError when the core is off or out of bounds.
    """
    before = frozenset(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, {core})  # 0 is the calling thread, sched_setaffinity(2)
    except OSError as error:
        raise DeviceError(
            f"this thread cannot be pinned to core {core}",
            why=cause(error),
            fix="it was switched off or taken from this process since the start; start again",
        ) from error
    return before


def unpin(cores: frozenset[int]) -> None:
    """Gives the calling thread back the cores it had."""
    os.sched_setaffinity(0, cores)


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keeps the calling thread on one core for a while. Raises DeviceError as :func:`pin` does."""
    before = pin(core)
    try:
        yield
    finally:
        unpin(before)
