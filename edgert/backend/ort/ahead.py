"""What a process's first engine on a GPU takes long for, begun in a thread while models are read: the GPU's context,
ONNX Runtime's CUDA libraries, and those that cuDNN opens for a first convolution, mostly without Python's lock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from edgert.backend.ort import cuda, runtime
from edgert.board.gpu_start import hold_context
from edgert.errors import EdgertError
from edgert.graph import to_bytes
from edgert.graph.model import smallest

log = logging.getLogger("edgert.backend")

_turn, _begun = threading.Lock(), list[int]()


@contextmanager
def libraries_ahead(ordinal: int) -> Iterator[None]:
    """Loads them meanwhile, the first time in a process; what is inside makes engines on that GPU, and so holds its
    context and these libraries by the end. What fails here fails there, too, with its reason; here it is not raised.
    """
    with _turn:
        is_first = ordinal not in _begun
        if is_first:
            _begun.append(ordinal)
    if not is_first:
        yield
        return
    ahead = _Ahead(ordinal)
    thread = threading.Thread(target=ahead.load, name="edgert:libraries")
    thread.start()
    try:
        yield
    finally:
        thread.join()
        ahead.close()


class _Ahead:
    def __init__(self, ordinal: int) -> None:
        self._ordinal, self._held = ordinal, list[Callable[[], object]]()
        self._session: Any = None

    def load(self) -> None:
        """All of it, and one run of a small model."""
        try:
            self._held.append(hold_context(self._ordinal))
            cuda.check_provider()
            model = smallest()
            provider = {"device_id": str(self._ordinal), "arena_extend_strategy": "kSameAsRequested"}
            self._session = cuda.open_on_gpu(to_bytes(model), runtime.session_settings(1), provider, model)
            (image,) = self._session.get_inputs()
            self._session.run(None, {image.name: np.zeros(image.shape, np.float32)})
        except EdgertError as error:
            log.debug("libraries of the GPU were not loaded ahead: %s", error)
        except runtime.ort_errors() as error:
            log.debug("ONNX Runtime's libraries of the GPU were not loaded ahead: %s", error)

    def close(self) -> None:
        """Gives back what it held, which lasts where others hold it, too."""
        self._session = None
        for let_go in self._held:
            let_go()
