"""A live page in the browser: every camera with its boxes, what happened, and how the pipeline is doing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.runtime.records import Result
from edgert.stages.sink.connections import listening
from edgert.stages.sink.http_answers import Source
from edgert.stages.sink.http_clips import Clips
from edgert.stages.sink.http_events import EventLog
from edgert.stages.sink.http_live import Live
from edgert.stages.sink.http_page import LivePage, Worker
from edgert.stages.sink.http_request import Access, is_loopback
from edgert.stages.sink.http_server import HttpServer, address_of

if TYPE_CHECKING:
    from edgert.stages.sink.http_video import CameraVideo

_LOG = logging.getLogger(__name__)
_OPEN = Access()


class HttpSink:
    """Serves ``/`` (the page), ``/wall``, ``/stream.mjpg``, ``/snapshot.jpg``, ``/stats.json``, ``/events.json``,
    ``/metrics``, ``/healthz``, ``/readyz`` and, for players of WHEP, ``/whep/STREAM``.

    Images are encoded only while somebody looks, in a thread of their own, and only the newest. Without a draw stage
    before it, boxes, labels, masks, keypoints and zones are painted here. It holds on to one frame of each camera, the
    newest.

    Args:
        host: on a loopback address only this machine may ask, by a loopback name. Any other address opens the page
            to the network.
        port: 0 picks a free one; see :attr:`url`.
        stats: the state of the run, as :meth:`edgert.runtime.summary.Summary.to_json` gives it, with its budgets as
            ``promised``, the sources whose frames it cannot do without as ``required``, and, for ``/metrics`` alone,
            ``totals`` and ``folders``; the page shows ``name fps frames_out dropped recent stages{name: {source}}``.
        access: who may ask, and by HTTP or HTTPS.
        clips: index of recordings that it plays; it gives nothing else from the disk.
        video: of cameras that are looked at alone; None: they are shown as images.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        stats: Callable[[], Mapping[str, object]],
        access: Access = _OPEN,
        clips: Path | None = None,
        video: CameraVideo | None = None,
    ) -> None:
        self.name, self._host, self._port, self._stats, self._access = name, host, port, stats, access
        self._clips, self._video = clips, video
        self._live = Live()
        self._worker: Worker | None = None
        self._server: HttpServer | None = None
        self._page: LivePage | None = None
        self._events: EventLog | None = None

    @property
    def url(self) -> str:
        """Where the page is; empty before :meth:`open` and after :meth:`close`."""
        return "" if self._server is None else address_of(self._host, self._server.port, self._access)

    def open(self) -> None:
        """Starts listening. Raises DeviceError when the address is taken or not this machine's."""
        own = listening(self._host, self._port, f"stages.{self.name}")
        self._live.begin()
        worker = Worker("edgert:http-images")
        events = EventLog(self._live, worker.do)
        clips = Clips(self._clips) if self._clips is not None else None
        source = Source(self._live, self._stats, events, clips, self._video)
        self._page = LivePage(source, self._access, worker)
        self._server = HttpServer(self._host, own, self._access, self._page, "edgert:http")
        worker.start()
        self._worker, self._events = worker, events
        _LOG.info("%s: live page at %s", self.name, self.url)
        if not is_loopback(self._host):
            self._warn()

    def process(self, result: Result) -> None:
        """Shows the result to whoever looks; never waits for anybody."""
        self._live.show(result)
        if self._video is not None:
            self._video.show(result)
        if self._events is not None:
            self._events.note(result)

    def close(self) -> None:
        """Ends all connections and threads, within a second."""
        self._live.close()
        if self._server is not None:
            self._server.stop()
        if self._page is not None:
            self._page.stop()
        if self._worker is not None:
            self._worker.stop()
            self._worker.join(_GOODBYE_S)
        if self._video is not None:
            self._video.close()
        self._server = self._page = self._worker = self._events = None

    def _warn(self) -> None:
        """What opening it to the network means, as it is."""
        about = self.name, self.url
        if not self._access.token:
            _LOG.warning("%s: anybody who reaches %s sees its cameras and state; token: asks for one", *about)
        elif self._access.tls is None:
            _LOG.warning("%s: token and images come and go unencrypted at %s; tls: {cert: …, key: …}", *about)


_GOODBYE_S = 0.1
