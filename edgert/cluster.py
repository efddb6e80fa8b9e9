"""Client of a Dask cluster, whose workers run functions of edgert; the only module that uses Dask.

Dask's protocol pickles the data between client and workers, so all members of a cluster must trust each other.
"""

import os
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from edgert import installation
from edgert._version import __version__
from edgert.errors import DeviceError, EdgertError, raised_as

_CONNECT_S = 10.0
_CLOSE_S = 2.0

Future = Any
"""A value that a worker computes; it may be an argument of :meth:`Cluster.submit`."""


class LostWorkersError(DeviceError):
    """Several workers died one after another while they ran one task."""


class Cluster:
    """The workers of a Dask cluster. Other workers run the tasks of lost ones again.

    Every worker needs the same version of edgert. It finds a function by its name, so it must be at the top level of a
    module. Raises DeviceError where no scheduler answers, or workers or the extra are missing.
    """

    def __init__(self, address: str) -> None:
        with raised_as(DeviceError, "--dask needs an extra", of=ImportError, fix=installation.command("dask")):
            import distributed
        self._package: Any = distributed
        self.address = address
        self._placed: dict[str, str] = {}  # task → preferred worker
        try:
            _check_listening(address)
            self._client: Any = self._package.Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError, distributed.TimeoutError) as error:
            raise DeviceError(
                f"no Dask scheduler answers at {address!r}",
                why=str(error) or "it takes too long",
                fix="give the address that `dask scheduler` prints, like tcp://HOST:8786",
            ) from error
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    @property
    def threads(self) -> int:
        """Number of tasks that all current workers run at a time."""
        with self._connected():
            return sum(self._client.nthreads().values())

    def jobs(self) -> Mapping[str, int]:
        """Return worker → number of tasks that run at a time on its processor cores, other workers' included."""
        with self._connected():
            threads = self._client.nthreads()
        found = self.everywhere(_describe_worker)
        machines: dict[str, tuple[str, str, frozenset[int]]] = {
            name: one for name, one in found.items() if not isinstance(one, Exception)
        }
        return {
            name: sum(
                threads.get(other, 0)
                for other, (_, its_host, its_cores) in machines.items()
                if its_host == host and its_cores & cores
            )
            for name, (_, host, cores) in machines.items()
        }

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Call a function on a worker; if the worker is lost, call it again on another.

        An argument of several tasks should be the future of another task. Then each worker has one copy, and Dask
        computes it again when the workers that hold it are lost. Raises DeviceError where the cluster is gone.
        """
        with self._connected():
            threads, placed = self._client.nthreads(), Counter(self._placed.values())
            best = min(threads, key=lambda name: placed[name] / threads[name], default=None)
            # Dask itself prefers the worker that holds the shared argument, and leaves others idle for seconds.
            future = self._client.submit(
                _call,
                __version__,
                function,
                *arguments,
                pure=False,
                key=f"{function.__name__}-{uuid.uuid4().hex}",  # Dask learns how long tasks of one name take
                workers=best and [best],
                allow_other_workers=best is not None,
            )
        self._placed[future.key] = best or ""
        return future

    def ended(self, futures: Collection[Future], timeout_s: float) -> list[Future]:
        """Wait until a task has ended, and return all that have; after the timeout, an empty list."""
        with suppress(self._package.TimeoutError), self._client.as_current():
            self._package.wait(list(futures), timeout=timeout_s, return_when="FIRST_COMPLETED")
        return [one for one in futures if one.done()]

    def result(self, future: Future) -> Any:
        """Return the result of a task that has ended, or raise its error; ``where`` of an EdgertError names the worker.

        Raises LostWorkersError where every worker that ran the task died, DeviceError where the cluster is gone.
        """
        self._placed.pop(future.key, None)
        with self._connected():
            error = future.exception()
            if error is None:
                return future.result()
        if isinstance(error, self._package.scheduler.KilledWorker):
            raise LostWorkersError(
                "a task killed every Dask worker that ran it", why=str(error).partition(".")[0]
            ) from error
        raise error

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Call a function on each worker, beside its tasks; return its results, or exceptions, by worker."""
        with self._connected():
            found: dict[str, Any] = self._client.run(function, *arguments, on_error="return")
        return found

    def cancel(self, futures: Collection[Future]) -> None:
        """Drop waiting tasks, and results; a running function is not interrupted."""
        for one in futures:
            self._placed.pop(one.key, None)
        with suppress(OSError, self._package.CancelledError, self._package.TimeoutError):
            self._client.cancel(list(futures))

    def close(self) -> None:
        """Disconnect from the cluster, which keeps running."""
        with suppress(OSError, self._package.TimeoutError):
            self._client.close(timeout=_CLOSE_S)

    def _check(self) -> None:
        """Raise DeviceError if there is no worker, or one has another version of edgert or none."""
        found = self.everywhere(_describe_worker)
        if not found:
            raise DeviceError(
                f"the Dask cluster at {self.address} has no workers", fix=f"start some: dask worker {self.address}"
            )
        wrong = [
            f"{name} has {'no edgert' if isinstance(one, Exception) else f'edgert {one[0]}'}"
            for name, one in found.items()
            if isinstance(one, Exception) or one[0] != __version__
        ]
        if wrong:
            raise _other_version("; ".join(wrong))

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except (self._package.CancelledError, self._package.TimeoutError, OSError) as error:
            raise DeviceError(
                f"the Dask cluster at {self.address} is gone",
                why=str(error),
                fix="start it again; the same command continues where it stopped",
            ) from error


def _check_listening(address: str) -> None:
    """Raise OSError or ValueError if nothing listens there; Dask's client would retry until its timeout."""
    scheme, _, place = address.rpartition("://")
    if scheme not in ("", "tcp", "tls"):
        raise ValueError(f"unknown scheme {scheme!r}: tcp or tls")
    found = urlsplit(f"//{place}")
    if not found.hostname or not found.port:
        raise ValueError("it needs a host and a port")
    socket.create_connection((found.hostname, found.port), _CONNECT_S).close()


def this_worker() -> tuple[str, int]:
    """Return the address of the worker that runs this task, and the number of tasks it runs at a time."""
    from distributed import get_worker

    worker = get_worker()
    return worker.address, worker.state.nthreads


def _call(version: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on a worker, whose version is checked because it may have joined after the first check."""
    name, _ = this_worker()
    try:
        if version != __version__:
            raise _other_version(f"{name} has edgert {__version__}", version)
        return function(*arguments)
    except EdgertError as error:
        error.where = f"{error.where} on Dask worker {name}".strip()
        raise


def _other_version(what: str, version: str = __version__) -> DeviceError:
    return DeviceError(
        f"a Dask worker has another edgert: {what}",
        why=f"results of workers must be those of edgert {version}, which asks for them",
        fix=f"install edgert {version} there, in the Python that runs `dask worker`",
    )


def _describe_worker() -> tuple[str, str, frozenset[int]]:
    return __version__, socket.gethostname(), frozenset(os.sched_getaffinity(0))
