"""Full batches on a GPU with convolutions that were compiled together with their bias. That takes seconds, so it is
done in a thread of its own, while batches run without."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from edgert.backend.ort import runtime
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import CudaDevice, Stream

log = logging.getLogger("edgert.backend")


class OwnRun:
    """A run by another ONNX Runtime session, over the same tensors.

    That session has a stream of its own, so that it can be made ready while the first one's is recorded; the run begins
    behind what is on the other stream, and what comes on that one begins behind the run.

    Args:
        binding: of that session, with all tensors bound.
        own: its stream.
    """

    def __init__(self, session: Any, binding: Any, device: CudaDevice, own: Stream) -> None:
        self._session, self._binding, self._own = session, binding, own
        self._begins, self._ends = device.event(), device.event()

    def enqueue(self, stream: Stream, settings: Any) -> None:
        """Puts it between what is on ``stream`` and what comes. Does not wait."""
        self._own.wait(self._begins.record(stream))
        self._session.run_with_iobinding(self._binding, settings)
        stream.wait(self._ends.record(self._own))


class Refinement:
    """Makes something in a thread of its own, and hands it over; may be broken off.

    Args:
        make: makes and hands it over, with the run options of its first run, which :meth:`close` ends.
        what: is made, for people.
        where: the model.
    """

    def __init__(self, make: Callable[[Any], None], what: str, where: str) -> None:
        self._make, self._what, self._where = make, what, where
        self._options = runtime.ort().RunOptions()
        self._thread = threading.Thread(target=self._run, name="edgert:fused")
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it has ended, one way or the other."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Breaks it off, and waits until it has ended."""
        self._options.terminate = True
        self._thread.join()

    def _run(self) -> None:
        started = time.perf_counter()
        try:
            self._make(self._options)
        except (BuildError, DeviceError) as error:
            if not self._options.terminate:
                log.warning("%s: no %s: %s (%s)", self._where, self._what, error.what, error.why)
        else:
            log.info("%s: %s after %.1f s", self._where, self._what, time.perf_counter() - started)
