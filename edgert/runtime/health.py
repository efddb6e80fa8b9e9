"""Health of a running pipeline, from its state as plain data: for /readyz and /healthz, systemd and Docker.

A pipeline is *ready* when every required camera delivers frames, and every stage is open and works. It is *stuck* when
only a restart helps: a stage does not return from a call, or results wait while no stage works. A lost camera is no
reason to restart.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edgert.errors import printable

Stats = Mapping[str, Any]
"""State as :meth:`edgert.Pipeline.state` returns it; any key may be missing."""
_BEAT_S, _SOON_S = 5.0, 0.5
_IDLE_S = 60.0
_EXTEND_S = 60
_LOG = logging.getLogger(__name__)


def unready_reasons(stats: Stats) -> list[str]:
    """Return why the pipeline is not ready, one line for each source or stage; empty if it is ready."""
    found = []
    required = stats.get("required", ())
    for name, stage in stats.get("stages", {}).items():
        if name in required and (why := _why_no_frames(stage)):
            found.append(f"{name}: {why}")
        elif stage.get("failing"):
            found.append(f"{name}: down: {stage['failing']}")
        elif stage.get("is_open") is False:
            found.append(f"{name}: not open yet")
    return [*found, *stuck_stages(stats)]


def stuck_stages(stats: Stats) -> list[str]:
    """Return one line for each stage that does not return from a call."""
    stages = stats.get("stages", {}).items()
    return [f"{name}: in one call for {stage['stuck_s']:.0f} s" for name, stage in stages if stage.get("stuck_s")]


def _why_no_frames(stage: Stats) -> str:
    """Return why a source delivers no frames; empty if it does."""
    source = stage.get("source") or {}
    reason = source.get("reason")
    if source.get("up") is False and stage.get("results_out"):
        return f"down for {source.get('state_s') or 0.0:.0f} s{reason and f': {reason}'}"
    return "" if stage.get("results_out") else reason or "no frame yet"


def status_line(stats: Stats) -> str:
    """Return the pipeline's state in one line."""
    recent = stats.get("recent") or {}
    latency, dropped = recent.get("latency_ms") or {}, sum((recent.get("dropped") or {}).values())
    line = f"{recent.get('fps') or 0.0:.1f} fps, p99 {latency.get('p99') or 0.0:.0f} ms, {dropped} dropped, last minute"
    return " ".join(printable("; ".join([line, *unready_reasons(stats)])).split())


class Progress:
    """Detector of a pipeline that hangs: results wait for a minute while no stage works."""

    def __init__(self) -> None:
        self._seen: tuple[object, float] = None, 0.0

    def hangs(self, stats: Stats, now_s: float) -> str:
        """Return why the pipeline hangs; empty if it does not."""
        stages = stats.get("stages", {})
        waiting = [name for name, stage in stages.items() if stage.get("waiting")]
        if not waiting or any(stage.get("in_call") for stage in stages.values()):
            self._seen = None, now_s
            return ""
        counts = [(stage.get("results_in"), stage.get("results_out")) for stage in stages.values()]
        if counts != self._seen[0]:
            self._seen = counts, now_s
        idle_s = now_s - self._seen[1]
        return f"{', '.join(waiting)}: no waiting result taken for {idle_s:.0f} s" if idle_s >= _IDLE_S else ""


def notify(*lines: str) -> bool:
    """Send lines to systemd, as sd_notify(3) does; return whether systemd expects them from this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, address.replace("@", "\0", 1))
        except OSError as error:
            _LOG.debug("cannot notify systemd: %s", error)
    return True


class Heartbeat(threading.Thread):
    """Thread that reports a run's state to systemd, from :meth:`start` to :meth:`stop`.

    It sends READY=1 once the run is ready, and asks for more time to start before that. It sends STATUS every few
    seconds, WATCHDOG=1 while nothing is stuck, and STOPPING=1 at the end.

    Args:
        state: function that returns the run's state as plain data; called every few seconds.
    """

    def __init__(self, state: Callable[[], Stats]) -> None:
        super().__init__(name="edgert:heartbeat", daemon=True)
        self._state, self._progress, self._is_ready, self._hangs = state, Progress(), False, ""
        self._over = threading.Event()
        self._beat_s = min(_BEAT_S, int(os.environ.get("WATCHDOG_USEC") or 60_000_000) / 3e6)

    def run(self) -> None:
        """Run the thread's body."""
        while not self._over.wait(self._beat_s if self._is_ready else min(_SOON_S, self._beat_s)):
            notify(*self.lines(self._state()))

    def lines(self, stats: Stats) -> Iterator[str]:
        """Yield the notifications for a state."""
        yield f"STATUS={status_line(stats)}"
        hangs = "; ".join([*stuck_stages(stats), *filter(None, [self._progress.hangs(stats, time.monotonic())])])
        if hangs:
            if not self._hangs:
                _LOG.warning("systemd's watchdog gets no more notifications: %s", hangs)
            self._hangs = hangs
            return
        self._hangs = ""
        if not self._is_ready and not unready_reasons(stats):
            self._is_ready = True
            yield "READY=1"
        yield "WATCHDOG=1" if self._is_ready else f"EXTEND_TIMEOUT_USEC={_EXTEND_S * 1_000_000}"

    def stop(self) -> None:
        """End the thread, and report that the run stops."""
        self._over.set()
        if self.ident is not None:
            self.join()
        notify("STOPPING=1", "STATUS=stopping")
