"""Sink that serves the live page: every camera with its boxes, events, and the state of the pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.runtime.records import Result
from edgert.runtime.worker import Worker
from edgert.stages.sink.client_limits import is_loopback
from edgert.stages.sink.tcp_server import listen
from edgert.stages.sink.web.clip_index import ClipIndex
from edgert.stages.sink.web.event_log import EventLog
from edgert.stages.sink.web.http_server import Access, HttpServer, address_of
from edgert.stages.sink.web.live_images import LiveImages
from edgert.stages.sink.web.live_page import LivePage, Source

if TYPE_CHECKING:
    from edgert.stages.sink.stream.whep import WhepVideo

_LOG = logging.getLogger(__name__)
_OPEN = Access()
_JOIN_S = 0.1


class HttpSink:
    """Sink that serves the live page; docs/live.md lists its addresses.

    Only the newest images are encoded, in a thread of their own, and only while somebody looks. Where no draw stage
    did, boxes, labels, masks, keypoints and zones are drawn here. The newest frame of each camera stays in use.

    Args:
        host: address to listen on. With a loopback address, only this machine has access, by a loopback name.
        port: port to listen on; 0 picks a free one, see :attr:`url`.
        stats: function that returns the state of the run, as :meth:`edgert.runtime.summary.Summary.to_json` does, with
            the budgets ``promised`` and the necessary sources ``required``. ``/metrics`` also reads ``totals`` and
            ``folders``.
        clips: index of the recordings to play. No other file of the disk is served.
        video: live video of single cameras; None: they are shown as images.
        swap_page: function that returns the report of the newest swap of a model, as HTML.
        control: function that answers requests to change the pipeline, from clients with the token.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        stats: Callable[[], Mapping[str, object]],
        access: Access = _OPEN,
        clips: Path | None = None,
        video: WhepVideo | None = None,
        swap_page: Callable[[], str] = str,
        control: Callable[[bytes, str], bytes] = lambda line, who: b"",
    ) -> None:
        self.name, self._host, self._port, self._stats, self._access = name, host, port, stats, access
        self._clips, self._video, self._swap_page, self._control = clips, video, swap_page, control
        self._images = LiveImages()
        self._worker: Worker | None = None
        self._server: HttpServer | None = None
        self._page: LivePage | None = None
        self._events: EventLog | None = None

    @property
    def url(self) -> str:
        """The URL of the page; empty before :meth:`open` and after :meth:`close`."""
        return "" if self._server is None else address_of(self._host, self._server.port, self._access)

    def open(self) -> None:
        """Start listening. Raises DeviceError where the address is in use, or does not belong to this machine."""
        listener = listen(self._host, self._port, f"stages.{self.name}")
        self._images.open()
        worker = Worker("edgert:http-images")
        events = EventLog(self._images, worker.submit)
        clips = ClipIndex(self._clips) if self._clips is not None else None
        source = Source(self._images, self._stats, events, clips, self._video, self._swap_page, self._control)
        self._page = LivePage(source, self._access, worker)
        self._server = HttpServer(self._host, listener, self._access, self._page, "edgert:http")
        worker.start()
        self._worker, self._events = worker, events
        _LOG.info("%s: live page at %s", self.name, self.url)
        if not is_loopback(self._host):
            self._warn()

    def process(self, result: Result) -> None:
        """Show the result to all viewers, without waiting for any."""
        self._images.show(result)
        if self._video is not None:
            self._video.show(result)
        if self._events is not None:
            self._events.add(result)

    def forget(self, name: str) -> None:
        """Stop showing a camera that was removed, or the records of a stage that was replaced."""
        self._images.forget(name)

    def close(self) -> None:
        """End all connections and threads, within a second."""
        self._images.close()
        if self._server is not None:
            self._server.stop()
        if self._page is not None:
            self._page.stop()
        if self._worker is not None:
            self._worker.stop()
            self._worker.join(_JOIN_S)
        if self._video is not None:
            self._video.close()
        self._server = self._page = self._worker = self._events = None

    def _warn(self) -> None:
        about = self.name, self.url
        if not self._access.token:
            _LOG.warning("%s: anybody who can reach %s sees its cameras and state. fix: token:", *about)
        elif self._access.tls is None:
            _LOG.warning("%s: token and images are sent unencrypted at %s. fix: tls: {cert: …, key: …}", *about)
