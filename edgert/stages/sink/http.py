"""A live page in the browser: the image with its boxes, and how the pipeline is doing."""

import errno
import logging
from collections.abc import Callable, Mapping

from edgert.errors import DeviceError
from edgert.runtime.records import Result
from edgert.stages.sink.live_server import Live, LiveServer

_LOG = logging.getLogger(__name__)


class HttpSink:
    """Serves ``/`` (the page), ``/stream.mjpg``, ``/snapshot.jpg``, ``/stats.json``, ``/metrics`` and ``/healthz``.

    Images are encoded only while somebody looks, in his thread, and only the newest. Without a draw stage before
    it, boxes, labels, masks and keypoints are painted here. It holds on to one frame, the newest.

    Args:
        host: on a loopback address only this machine may ask, by a loopback name. Any other address opens the page
            to the network; it has no password.
        port: 0 picks a free one; see :attr:`url`.
        stats: the state of the run, as :meth:`edgert.runtime.summary.Summary.to_json` gives it, with its budgets as
            ``promised``; the page shows ``fps frames_out dropped latency_ms{p50,p99} stages{name: {busy_percent,
            dropped}}`` of it.
    """

    def __init__(self, name: str, host: str, port: int, stats: Callable[[], Mapping[str, object]]) -> None:
        self.name, self._host, self._port, self._stats = name, host, port, stats
        self._live = Live()
        self._server: LiveServer | None = None

    @property
    def url(self) -> str:
        """Where the page is; empty before :meth:`open` and after :meth:`close`."""
        if self._server is None:
            return ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.server_port}/"

    def open(self) -> None:
        """Starts listening. Raises DeviceError when the address is taken or not this machine's."""
        try:
            self._server = LiveServer(self._host, self._port, self._live, self._stats)
        except OSError as error:
            raise self._not_listening(error) from error
        self._server.start()
        _LOG.info("%s: live page at %s", self.name, self.url)

    def process(self, result: Result) -> None:
        """Shows the result to whoever looks; never waits for anybody."""
        self._live.show(result)

    def close(self) -> None:
        """Ends all connections and threads, within half a second."""
        self._live.close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _not_listening(self, error: OSError) -> DeviceError:
        taken = error.errno == errno.EADDRINUSE
        return DeviceError(
            f"cannot listen on {self._host}:{self._port}",
            why="another program is listening there" if taken else error.strerror or str(error),
            where=f"stages.{self.name}",
            fix="choose another port, or port: 0 for any free one" if taken else "host: 127.0.0.1 always works",
        )
