"""The state of a run for Prometheus, written by ``prometheus_client``. Unknown values are left out.

Names and units follow https://prometheus.io/docs/practices/naming/: base units, and ``_total`` at the end of counters.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from edgert._version import __version__
from edgert.runtime.metrics import UPTO_MS

Stats = Mapping[str, Any]
Sample = tuple[Mapping[str, str], float | None]
"""Labels and value of a metric; None: the value is not known."""

_RUN = (
    ("start_time_seconds", "When the run began, since 1970.", "started_s"),
    ("run_seconds", "Since the run began.", "seconds"),
    ("captured_frames_total", "Frames that the sources gave.", "frames_in"),
    ("finished_frames_total", "Results that the last stages took.", "frames_out"),
    ("allocations_total", "Buffers taken from the operating system.", "allocations"),
    ("resident_memory_peak_bytes", "The most memory that the process held.", "peak_rss_bytes"),
    ("planned_memory_bytes", "Memory by plan, before the start.", "budgets.memory.total_bytes"),
    ("budget_power_watts", "The budget of power.", "promised.power"),
    ("budget_cpu_cores", "The budget of CPU time.", "promised.cpu"),
    ("budget_latency_seconds", "The budget of latency's 99th percentile.", "promised.latency"),
    ("budget_memory_bytes", "The budget of memory.", "promised.memory"),
    ("throttled_frames_total", "Frames throttled to keep within the budgets.", "budgets.throttled"),
    ("governor_level", "0: every model as written; 1 and more: stand-ins.", "budgets.governor.level"),
    ("governor_switches_total", "Settings taken.", "budgets.governor.switches"),
    ("governor_warnings_total", "Budgets exceeded with nothing left to do.", "budgets.governor.warnings"),
)
_STAGE = (
    ("results_total", "What a stage passed on.", "results_out"),
    ("queued_results", "What waits for a stage.", "waiting"),
    ("stage_errors_total", "Failures that the pipeline outlived.", "errors"),
    ("stage_restarts_total", "Times a stage was opened again after a failure.", "restarts"),
    ("stage_stuck_seconds", "In one call, once that is longer than the watchdog; else 0.", "stuck_s"),
)
_SOURCE = (
    ("source_up", "Whether a camera gives frames.", "source.up"),
    ("source_state_seconds", "For how long it has been up or down.", "source.state_s"),
    ("source_last_frame_age_seconds", "Since its newest frame came.", "source.frame_age_s"),
    ("source_lost_frames_total", "Frames missing by the camera's own count.", "source.lost"),
    ("source_corrupt_total", "Corrupt pieces that gave no frame.", "source.skipped"),
    ("source_reconnects_total", "Times a stream was opened again.", "source.reconnects"),
)
_TIMES = {"working": "busy_percent", "starved": "wait_in_percent", "blocked": "wait_out_percent"}
_BOUNDS = [f"{bound / 1e3:g}" for bound in UPTO_MS]


def exposition(stats: Stats, media_type: str) -> tuple[str, bytes]:
    """Return the metrics of a run, as text with its content type.

    Args:
        stats: state of the run, from :meth:`edgert.runtime.summary.Summary.to_json`, with the budgets ``promised``, the
            ``totals`` of :func:`edgert.runtime.recent.totals`, and the output ``folders`` by stage. Any part may be
            missing.
        media_type: ``application/openmetrics-text``, or ``text/plain`` for the text format of Prometheus.
    """
    registry = CollectorRegistry()
    registry.register(RunCollector(stats))
    encode, content_type = choose_encoder(media_type)
    return content_type, encode(registry)


class RunCollector(Collector):
    """The metrics of one state of a run; see :func:`exposition`."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are known."""
        stats = self._stats
        version = ({"version": __version__}, 1)
        for metric in (
            _metric("build_info", "The version of edgert.", [version]),
            *_run(stats),
            *_stages(stats),
            *_streams(_at(stats, "totals")),
            *_disks(_at(stats, "folders")),
            *_engines(_at(stats, "engine")),
            *_budgets(_at(stats, "budgets")),
        ):
            if metric.samples:
                yield metric


def _metric(name: str, text: str, samples: Iterable[Sample]) -> Metric:
    """Return a metric. ``name`` has no prefix ``edgert_``; its ending sets the kind."""
    kind = {"total": "counter", "info": "info"}.get(name.rpartition("_")[2], "gauge")
    metric = Metric(f"edgert_{name if kind == 'gauge' else name.rpartition('_')[0]}", text, kind)
    for labels, value in samples:
        if value is not None:
            metric.add_sample(f"edgert_{name}", dict(labels), value)
    return metric


def _run(stats: Stats) -> Iterator[Metric]:
    for name, text, key in _RUN:
        yield _metric(name, text, [({}, _number(stats, key))])
    frames = _number(stats, "frames_in")
    for name, text, key in (
        ("copies_total", "Copies of pixels.", "copies_per_frame"),
        ("copied_bytes_total", "Pixels copied.", "bytes_copied_per_frame"),
    ):
        each = _number(stats, key)
        yield _metric(name, text, [({}, None if each is None or frames is None else round(each * frames))])
    text = "Times that the board lowered its clocks since the run began, as it drew too much."
    limits = _at(stats, "over_current")
    yield _metric("over_current_events_total", text, [({"limit": name}, _number(limits, name)) for name in limits])
    text = "Boxes of a model that were not finite, had no size, or lay outside of the image."
    boxes = _at(stats, "left_out")
    yield _metric("left_out_boxes_total", text, [({"model": n}, boxes.get(n, 0)) for n in _at(stats, "engine")])


def _stages(stats: Stats) -> Iterator[Metric]:
    stages = _at(stats, "stages").items()
    text = "What a stage took: frames, and results of frames; of a source, what it gave."
    taken = [
        ({"stage": name}, _number(one, "results_out" if one.get("source") else "results_in")) for name, one in stages
    ]
    yield _metric("frames_total", text, taken)
    for label, metrics in (("stage", _STAGE), ("stream", _SOURCE)):
        for metric, text, key in metrics:
            yield _metric(metric, text, [({label: name}, _number(one, key)) for name, one in stages])
    reasons = [({"stream": name}, _at(one, "source").get("reason")) for name, one in stages]
    yield _metric("source_down_info", "Why a camera gives no frames.", _with_reason(reasons))
    reasons = [({"stage": name}, one.get("failing")) for name, one in stages]
    yield _metric("stage_down_info", "Why results are lost at a stage now.", _with_reason(reasons))
    percent = _number(stats, "seconds", 0.01)
    text = "A stage's time: working, starved of input, or blocked by a full queue."
    times = [
        ({"stage": name, "state": state}, None if percent is None else _number(one, key, percent))
        for name, one in stages
        for state, key in _TIMES.items()
    ]
    yield _metric("stage_seconds_total", text, times)


def _with_reason(found: Iterable[tuple[Mapping[str, str], object]]) -> list[Sample]:
    """Return a sample for each reason, which becomes a label."""
    return [({**labels, "reason": str(reason)}, 1) for labels, reason in found if reason]


def _streams(totals: Stats) -> Iterator[Metric]:
    """Yield latencies and losses of each camera's frames, at each stage and after the last stages."""
    found = [({"stage": name, "stream": stream}, one) for name, of in totals.items() for stream, one in of.items()]
    lasts = dict[str, list[Stats]]()
    for labels, one in found:
        if one["is_last"]:
            lasts.setdefault(labels["stream"], []).append(one)
    text = "From capture to the end of the last stages."
    yield _histogram("latency_seconds", text, [({"stream": stream}, all_of) for stream, all_of in lasts.items()])
    text = "From capture until a stage was done with a frame."
    yield _histogram("stage_latency_seconds", text, [(labels, [one]) for labels, one in found])
    text = "What a stage never saw: its queue was full, a join lost the other part, or the stage had ended."
    lost = [
        ({**labels, "cause": cause}, float(number))
        for labels, one in found
        for cause, number in {"queue": 0, **one["dropped"]}.items()
    ]
    yield _metric("dropped_total", text, lost)


def _histogram(name: str, text: str, series: Iterable[tuple[Mapping[str, str], Sequence[Stats]]]) -> Metric:
    """Return a histogram, each of whose series sums the counts of several stages."""
    name = f"edgert_{name}"
    metric = Metric(name, text, "histogram")
    for labels, totals in series:
        count = sum(one["results"] for one in totals)
        for bound, *numbers in zip(_BOUNDS, *(one["upto"] for one in totals), strict=True):
            metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, sum(numbers))
        metric.add_sample(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
        metric.add_sample(f"{name}_count", dict(labels), count)
        metric.add_sample(f"{name}_sum", dict(labels), sum(one["latency_s"] for one in totals))
    return metric


def _disks(folders: Mapping[str, str]) -> Iterator[Metric]:
    free, size = list[Sample](), list[Sample]()
    for name, path in folders.items():
        folder = Path(path).absolute()
        with suppress(OSError):  # the disk is gone, or the folder may not be entered
            while not folder.exists():  # the stage creates it later
                folder = folder.parent
            found = os.statvfs(folder)
            free.append(({"stage": name}, found.f_bavail * found.f_frsize))
            size.append(({"stage": name}, found.f_blocks * found.f_frsize))
    yield _metric("disk_free_bytes", "What is left of the disk that a stage writes to.", free)
    yield _metric("disk_size_bytes", "The size of the disk that a stage writes to.", size)


def _engines(engines: Stats) -> Iterator[Metric]:
    runs = [
        ({"model": name, "engine": str(one.get("engine") or one.get("backend"))}, 1) for name, one in engines.items()
    ]
    yield _metric("engine_info", "Who runs a model.", runs)
    skipped = [
        ({"model": name, "engine": other["engine"], "why": other["why"]}, 1)
        for name, one in engines.items()
        for other in one.get("skipped", ())
    ]
    yield _metric("engine_skipped_info", "An engine of the chain that does not run a model.", skipped)


def _budgets(budgets: Stats) -> Iterator[Metric]:
    settings = [({"setting": name}, value) for name, value in _at(budgets, "governor", "seconds").items()]
    yield _metric("governor_setting_seconds_total", "Time in each setting.", settings)
    used = _at(budgets, "used")
    if used.get("unit") == "cores":
        yield _metric("cpu_core_seconds_total", "CPU time.", [({}, _number(used, "total"))])
    elif used:
        modeled_s, missing_s = used["modeled_s"], used["missing_s"]
        times = {"modeled": modeled_s, "measured": used["covered_s"] - modeled_s, "missing": missing_s}
        kind = {"kind": "modeled" if modeled_s else "measured"}  # modeled if any part is
        yield _metric("power_watts", "Power, the mean of the run.", [(kind, _number(used, "mean"))])
        yield _metric("energy_joules_total", "Energy.", [(kind, _number(used, "total"))])
        known = [({"kind": name}, value) for name, value in times.items()]
        yield _metric("power_known_seconds_total", "Time by how its power is known.", known)


def _at(stats: Stats, *keys: str) -> Stats:
    """Return a part of the statistics, by its path; an empty one where it is missing."""
    for key in keys:
        stats = stats.get(key) or {}
    return stats


def _number(stats: Stats, key: str, scale: float = 1) -> float | None:
    """Return the number at a dotted key, in the metric's unit; None where there is none."""
    *path, last = key.split(".")
    value = _at(stats, *path).get(last)
    return value * scale if isinstance(value, (int, float)) else None
