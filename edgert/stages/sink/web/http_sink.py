"""The sink of the live page in the browser: every camera with its boxes, events, and how the pipeline is doing."""

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
    """Server of the live page and its addresses, which docs/live.md lists.

    Images are encoded only while somebody looks, in a thread of their own, and only the newest. Without a draw stage
    before it, boxes, labels, masks, keypoints and zones are drawn here. It holds one frame of each camera, the newest.

    Args:
        host: on a loopback address only this machine may ask, by a loopback name. Any other address opens the page
            to the network.
        port: 0 picks a free one; see :attr:`url`.
        stats: returns the state of the run, as :meth:`edgert.runtime.summary.Summary.to_json` does. Added are its
            budgets ``promised`` and the sources it needs, ``required``. ``/metrics`` also reads ``totals`` and
            ``folders``.
        access: who may ask, and by HTTP or HTTPS.
        clips: index of recordings that it plays; it gives nothing else from the disk.
        video: video of cameras that are looked at alone; None: they are shown as images.
        swap_page: the report of the newest swap of a model, as HTML.
        control: answers requests to change the pipeline, of clients that have the token.
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
        """Start listening. Raises DeviceError: the address is in use, or is none of this machine's."""
        own = listen(self._host, self._port, f"stages.{self.name}")
        self._images.open()
        worker = Worker("edgert:http-images")
        events = EventLog(self._images, worker.submit)
        clips = ClipIndex(self._clips) if self._clips is not None else None
        source = Source(self._images, self._stats, events, clips, self._video, self._swap_page, self._control)
        self._page = LivePage(source, self._access, worker)
        self._server = HttpServer(self._host, own, self._access, self._page, "edgert:http")
        worker.start()
        self._worker, self._events = worker, events
        _LOG.info("%s: live page at %s", self.name, self.url)
        if not is_loopback(self._host):
            self._warn()

    def process(self, result: Result) -> None:
        """Show the result to everybody who looks; never wait for anybody."""
        self._images.show(result)
        if self._video is not None:
            self._video.show(result)
        if self._events is not None:
            self._events.add(result)

    def forget(self, name: str) -> None:
        """Show no longer a camera that was removed, or what a stage made before it was replaced."""
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
            _LOG.warning("%s: anybody who reaches %s sees its cameras and state; token: asks for one", *about)
        elif self._access.tls is None:
            _LOG.warning("%s: token and images come and go unencrypted at %s; tls: {cert: …, key: …}", *about)
