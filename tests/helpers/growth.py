"""What a process holds: files, threads, memory; to see that it does not grow."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_END_S = 5.0
"""A thread that was joined is still the system's for a moment."""


@dataclass(frozen=True)
class Holds:
    files: int
    threads: int
    python_threads: int
    rss_bytes: int

    @classmethod
    def trimmed(cls) -> Holds:
        """A reading without what was freed and glibc keeps: after models came and went, that is 20 MB more or less."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return cls.now()

    @classmethod
    def now(cls) -> Holds:
        status = Path("/proc/self/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines())
        files = len(list(Path("/proc/self/fd").iterdir()))
        rss_bytes = int(values["VmRSS"].split()[0]) * 1024
        return cls(files, int(values["Threads"]), threading.active_count(), rss_bytes)

    def more_than(self, before: Holds) -> int:
        """By how many files or threads, of the system or of Python, whichever is most; earlier tests' may end."""
        pairs = (
            (self.files, before.files),
            (self.threads, before.threads),
            (self.python_threads, before.python_threads),
        )
        return max(now - then for now, then in pairs)


def use_one_heap() -> None:
    """Threads share a heap from now on: in many, each with pieces of models that came and went, growth is not seen."""
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


_M_ARENA_MAX = -8  # malloc.h of glibc


@contextmanager
def no_collector() -> Iterator[None]:
    """Python's garbage collector does nothing meanwhile by itself: what goes, goes because nobody refers to it. Where
    somebody asks for it, it looks at nothing older than this, which would take long."""
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        if was_frozen:
            gc.freeze()


def growth(step: Callable[[int], None], settle: int, count: int) -> tuple[Holds, Holds, int]:
    """What was held after ``settle`` steps, after ``count`` more, and the growth of memory over the last half of these,
    which is none where a plateau was reached."""
    with no_collector():
        for index in range(settle):
            step(index)
        before = Holds.now()
        for index in range(count // 2):
            step(index)
        half = Holds.now()
        for index in range(count - count // 2):
            step(index)
        after, until = Holds.now(), time.monotonic() + _END_S
        while after.threads > before.threads and time.monotonic() < until:
            time.sleep(0.05)
            after = Holds.now()
    return before, after, after.rss_bytes - half.rss_bytes


def is_freed(make: Callable[[], object]) -> bool:
    """Whether what a function returns is freed at once, without the garbage collector."""
    with no_collector():
        return weakref.ref(make())() is None
