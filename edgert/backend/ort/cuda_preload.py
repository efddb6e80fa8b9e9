"""ONNX Runtime's libraries of a GPU, which a process's first engine there waits for, loaded in a thread while models
are read. The context is made ready elsewhere (:mod:`edgert.board.gpu_start`)."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from edgert.errors import EdgertError

log = logging.getLogger("edgert.backend")

_turn, _threads = threading.Lock(), dict[int, threading.Thread]()


@contextmanager
def libraries_preloaded(ordinal: int, load: Callable[[int], object]) -> Iterator[None]:
    """Loads them meanwhile, the first time in a process; what is inside makes engines on that GPU. What fails here
    fails there, too, with its reason; here it is not raised.

    Args:
        load: loads those of a GPU; what it returns is held meanwhile. See
            :func:`~edgert.backend.ort.cuda.smallest_session`.
    """
    held = list[Any]()
    with _turn:
        is_first = ordinal not in _threads
        if is_first:
            thread = _threads[ordinal] = threading.Thread(
                target=_load, args=(ordinal, load, held), name="edgert:libraries"
            )
            thread.start()
    try:
        yield
    finally:
        if is_first:
            thread.join()
        held.clear()  # others hold the libraries by now


def wait() -> None:
    """Until nothing is being loaded: while a session is made, none can be made beside it."""
    with _turn:  # else one might be there that has not started
        threads = list(_threads.values())
    for thread in threads:
        thread.join()


def _load(ordinal: int, load: Callable[[int], object], held: list[Any]) -> None:
    try:
        held.append(load(ordinal))
    except EdgertError as error:
        log.debug("ONNX Runtime's libraries of the GPU were not loaded ahead: %s", error)
