"""Calibration spread over the machines of a Dask cluster; the only door to the packages ``dask`` and ``distributed``.

Workers need edgert with this extra, and processors with the same instructions if the ranges are to be the same to the
last bit. Lost workers' shards are redone by Dask.
"""

from types import ModuleType
from typing import Any

from edgert import installation
from edgert.errors import CalibrationError, DeviceError
from edgert.quantization.calibration.observer import Observer
from edgert.quantization.calibration.shards import Feed, Shard
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.workers import deadly

_CONNECT_S = 10
_AHEAD = 2  # shards per thread of the cluster: one being counted, one waiting


class Cluster:
    """See :class:`~edgert.quantization.calibration.workers.Pool`: the threads of a Dask cluster's workers.

    Args:
        address: of the scheduler, ``"tcp://10.0.0.5:8786"``.

    Raises:
        DeviceError: the extra is not installed.
        CalibrationError: no scheduler answers there, or it has no workers.
    """

    def __init__(self, observer: Observer, feed: Feed | None, address: str) -> None:
        self._package = _distributed()
        self._client = self._connect(address)
        threads = sum(self._client.nthreads().values())
        if not threads:
            self._client.close()
            raise CalibrationError(
                f"the Dask cluster at {address} has no workers", fix=f"start some: dask worker {address}"
            )
        self.width = _AHEAD * threads
        self._address = address
        # As a result of a task, not as data: when the workers that hold it are lost, Dask makes it again.
        self._work = self._client.submit(_pair, observer, feed, pure=False)
        self._running: dict[int, Any] = {}

    def submit(self, shard: Shard) -> None:
        """See :class:`~edgert.quantization.calibration.workers.Pool`."""
        self._running[shard.start] = self._client.submit(_count, self._work, shard, pure=False)

    def take(self, shard: Shard, timeout_s: float) -> dict[str, Histogram] | None:
        """See :class:`~edgert.quantization.calibration.workers.Pool`.

        Raises:
            CalibrationError: no worker survives this shard, or the cluster is gone.
        """
        future = self._running[shard.start]
        try:
            with self._client.as_current():
                self._package.wait([future], timeout=timeout_s)
        except self._package.TimeoutError:
            return None
        try:
            counted: dict[str, Histogram] = future.result()
        except self._package.scheduler.KilledWorker as error:
            raise deadly(shard, str(error)) from error
        except (self._package.CancelledError, OSError) as error:
            raise CalibrationError(
                f"the Dask cluster at {self._address} is gone",
                why=str(error),
                fix="start it again; with a state file, calibration goes on where it was",
            ) from error
        del self._running[shard.start]
        return counted

    def close(self) -> None:
        """See :class:`~edgert.quantization.calibration.workers.Pool`. The cluster itself stays."""
        self._client.cancel([self._work, *self._running.values()])
        self._client.close()

    def _connect(self, address: str) -> Any:
        try:
            return self._package.Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, self._package.TimeoutError) as error:
            raise CalibrationError(
                f"no Dask scheduler answers at {address!r}",
                why=str(error) or "it takes too long",
                fix="give the address that `dask scheduler` prints, like tcp://HOST:8786",
            ) from error


def _distributed() -> ModuleType:
    try:
        import distributed
        import distributed.scheduler
    except ImportError as error:
        raise DeviceError(
            "calibration over a Dask cluster needs an extra", why=str(error), fix=installation.command("dask")
        ) from error
    module: ModuleType = distributed
    return module


def _pair(observer: Observer, feed: Feed | None) -> tuple[Observer, Feed | None]:
    return observer, feed


def _count(work: tuple[Observer, Feed | None], shard: Shard) -> dict[str, Histogram]:
    observer, feed = work
    return observer.count(shard.images(feed))
