"""Sink that serves the live page: every camera with its boxes, events, and the state of the pipeline."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.runtime.records import Result
from edgert.stages.sink.client_limits import is_loopback
from edgert.stages.sink.tcp_server import listen
from edgert.stages.sink.web.http_server import Access, HttpServer, address_of
from edgert.stages.sink.web.live_page import LivePage

if TYPE_CHECKING:
    from edgert.stages.sink.stream.whep import WhepVideo

_LOG = logging.getLogger(__name__)
_OPEN = Access()


class HttpSink(LivePage):
    """Sink that serves the live page; docs/live.md lists its addresses.

    Only the newest images are encoded, in a thread of their own, and only while somebody looks. Where no draw stage
    did, boxes, labels, masks, keypoints and zones are drawn here. The newest frame of each camera stays in use.

    Args:
        host: address to listen on. With a loopback address, only this machine has access, by a loopback name.
        port: port to listen on; 0 picks a free one, see :attr:`url`.
        stats, access, clips, video, swap_page, control: as for :class:`LivePage`.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        stats: Callable[[], Mapping[str, object]],
        access: Access = _OPEN,
        clips: Path | None = None,
        video: "WhepVideo | None" = None,
        swap_page: Callable[[], str] = str,
        control: Callable[[bytes, str], bytes] = lambda line, who: b"",
    ) -> None:
        super().__init__(stats, access, clips, video, swap_page, control)
        self.name, self._host, self._port = name, host, port
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """The URL of the page; empty before :meth:`open` and after :meth:`close`."""
        return "" if self._server is None else address_of(self._host, self._server.port, self.access)

    def open(self) -> None:
        """Start listening. Raises DeviceError where the address is in use, or does not belong to this machine."""
        listener = listen(self._host, self._port, f"stages.{self.name}")
        self.images.open()
        self.start_workers()
        self._server = HttpServer(self._host, listener, self.access, self, "edgert:http")
        _LOG.info("%s: live page at %s", self.name, self.url)
        if not is_loopback(self._host):
            self._warn()

    def process(self, result: Result) -> None:
        """Show the result to all viewers, without waiting for any."""
        self.images.show(result)
        if self.whep is not None:
            self.whep.show(result)
        self.events.add(result)

    def forget(self, name: str) -> None:
        """Stop showing a camera that was removed, or the records of a stage that was replaced."""
        self.images.forget(name)

    def close(self) -> None:
        """End all connections and threads, within a second."""
        self.images.close()
        if self._server is not None:
            self._server.stop()
        self.stop_workers()
        if self.whep is not None:
            self.whep.close()
        self._server = None

    def _warn(self) -> None:
        about = self.name, self.url
        if not self.access.token:
            _LOG.warning("%s: anybody who can reach %s sees its cameras and state. fix: token:", *about)
        elif self.access.tls is None:
            _LOG.warning("%s: token and images are sent unencrypted at %s. fix: tls: {cert: …, key: …}", *about)
