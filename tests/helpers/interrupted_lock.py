"""Ctrl-C at the moment in which a lock has been taken and no block that gives it back has begun."""

from typing import Any


class InterruptedLock:
    """A lock whose user gets Ctrl-C at once after taking it, or before giving it back."""

    def __init__(self, lock: Any, at: str) -> None:
        self._lock, self._at = lock, at

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self, timeout: float) -> bool:
        taken = bool(self._lock.acquire(timeout=timeout))
        self._interrupt("acquire")
        return taken

    def release(self) -> None:
        self._interrupt("release")
        self._lock.release()

    def _interrupt(self, at: str) -> None:
        if self._at == at:
            self._at = ""
            raise KeyboardInterrupt
