"""A lock that dies with its last holder: the kernel takes it from a process that is gone, so none is ever stale."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgert.errors import ArtifactError, cause

_LOOK_S = 0.1


def take(path: Path) -> int | None:
    """An open file that holds the lock, which a child process may inherit; None where another holds it.

    The caller closes it. Raises ArtifactError where there can be no such file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {str(path)!r}", why=cause(error), fix="point EDGERT_CACHE at a folder that can be written"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(path: Path) -> bool:
    """Whether a living process holds it."""
    if not path.exists():
        return False
    descriptor = take(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


@contextmanager
def held(path: Path, patience_s: float) -> Iterator[None]:
    """Holds the lock in the block. Blocks until it has it; raises ArtifactError when ``patience_s`` have passed."""
    until = time.monotonic() + patience_s
    while (descriptor := take(path)) is None:
        if time.monotonic() > until:
            raise ArtifactError(
                "this bundle is being copied to the board already",
                why=f"another process has been at it for {patience_s:g} s",
                where=str(path),
                fix="wait for the other build, or end it",
            )
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        os.close(descriptor)
