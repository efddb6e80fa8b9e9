"""The state of a run for Prometheus: its text format, version 0.0.4.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/. Names, base units and ``_total`` as in
https://prometheus.io/docs/practices/naming/. What the run does not know is left out: nothing is 0 that is not known.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from edgert._version import __version__
from edgert.runtime.metrics import UPTO_MS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Stats = Mapping[str, Any]
Kind = Literal["counter", "gauge", "histogram"]
Sample = tuple[Mapping[str, str], float | None]
"""Labels, and a value; None: not known."""
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

_RUN: tuple[tuple[str, Kind, str, str], ...] = (
    ("start_time_seconds", "gauge", "When the run began, since 1970.", "started_s"),
    ("run_seconds", "gauge", "Since the run began.", "seconds"),
    ("captured_frames_total", "counter", "Frames that the sources gave.", "frames_in"),
    ("finished_frames_total", "counter", "Results that the last stages took.", "frames_out"),
    ("allocations_total", "counter", "Buffers taken from the operating system.", "allocations"),
    ("resident_memory_peak_bytes", "gauge", "The most memory that the process held.", "peak_rss_bytes"),
    ("planned_memory_bytes", "gauge", "Memory by plan, before the start.", "budgets.memory.total_bytes"),
    ("budget_power_watts", "gauge", "The budget of power.", "promised.power"),
    ("budget_cpu_cores", "gauge", "The budget of CPU time.", "promised.cpu"),
    ("budget_latency_seconds", "gauge", "The budget of latency's 99th percentile.", "promised.latency"),
    ("budget_memory_bytes", "gauge", "The budget of memory.", "promised.memory"),
    ("throttled_frames_total", "counter", "Frames throttled to keep within the budgets.", "budgets.throttled"),
    ("governor_level", "gauge", "0: every model as written; 1 and more: stand-ins.", "budgets.governor.level"),
    ("governor_switches_total", "counter", "Settings taken.", "budgets.governor.switches"),
    ("governor_warnings_total", "counter", "Budgets exceeded with nothing left to do.", "budgets.governor.warnings"),
)
_STAGE: tuple[tuple[str, Kind, str, str], ...] = (
    ("results_total", "counter", "What a stage passed on.", "results_out"),
    ("queued_results", "gauge", "What waits for a stage.", "waiting"),
    ("stage_errors_total", "counter", "Failures that the pipeline outlived.", "errors"),
    ("stage_restarts_total", "counter", "Times a stage was opened again after a failure.", "restarts"),
    ("stage_stuck_seconds", "gauge", "In one call, once that is longer than the watchdog; else 0.", "stuck_s"),
)
_SOURCE: tuple[tuple[str, Kind, str, str], ...] = (
    ("source_up", "gauge", "Whether a camera gives frames.", "source.up"),
    ("source_state_seconds", "gauge", "For how long it has been up or down.", "source.state_s"),
    ("source_last_frame_age_seconds", "gauge", "Since its newest frame came.", "source.frame_age_s"),
    ("source_lost_frames_total", "counter", "Frames missing by the camera's own count.", "source.lost"),
    ("source_corrupt_total", "counter", "Corrupt pieces that gave no frame.", "source.skipped"),
    ("source_reconnects_total", "counter", "Times a stream was opened again.", "source.reconnects"),
)
_SPENT = {"working": "busy_percent", "starved": "wait_in_percent", "blocked": "wait_out_percent"}
_BOUNDS = [f"{bound / 1e3:g}" for bound in UPTO_MS]


def metrics_text(stats: Stats) -> str:
    """The metrics of a run.

    Args:
        stats: plain data, as :meth:`edgert.runtime.summary.Summary.to_json` gives it, with the pipeline's budgets as
            ``promised``, :func:`edgert.runtime.recent.totals`, and by stage the ``folders`` that are written to; any of
            it may be missing.
    """
    engines, budgets = _engines(_at(stats, "engine")), _budgets(_at(stats, "budgets"))
    parts = (
        _run(stats),
        _stages(stats),
        _streams(_at(stats, "totals")),
        _disks(_at(stats, "folders")),
        _over_current(_at(stats, "over_current")),
        _left_out(_at(stats, "left_out"), _at(stats, "engine")),
        engines,
        budgets,
    )
    made = _family("build_info", "gauge", "The version of edgert.", [({"version": __version__}, 1)])
    return made + "".join(family for part in parts for family in part)


def _family(
    name: str, kind: Kind, text: str, samples: Iterable[Sample], rows: Iterable[tuple[str, Sample]] = ()
) -> str:
    """A metric, without the ``edgert_`` of its name; empty where nothing is known. Of a histogram, ``rows`` are all its
    lines, with what follows its name."""
    name = f"edgert_{name}"
    lines = [_line(name, labels, value) for labels, value in samples if value is not None]
    lines += [_line(f"{name}_{row}", labels, value) for row, (labels, value) in rows if value is not None]
    head = (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
    return "".join(f"{line}\n" for line in (*head, *lines)) if lines else ""


def _run(stats: Stats) -> Iterator[str]:
    for name, kind, text, key in _RUN:
        yield _family(name, kind, text, [({}, _number(stats, key))])
    frames = _number(stats, "frames_in")
    for name, text, key in (
        ("copies_total", "Copies of pixels.", "copies_per_frame"),
        ("copied_bytes_total", "Pixels copied.", "bytes_copied_per_frame"),
    ):
        each = _number(stats, key)
        yield _family(name, "counter", text, [({}, None if each is None or frames is None else round(each * frames))])


def _over_current(events: Stats) -> Iterator[str]:
    text = "Times that the board lowered its clocks since the run began, as it drew too much."
    yield _family("over_current_events_total", "counter", text, [({"limit": n}, _number(events, n)) for n in events])


def _left_out(boxes: Stats, models: Stats) -> Iterator[str]:
    text = "Boxes of a model that were not finite, had no size, or lay outside of the image."
    yield _family("left_out_boxes_total", "counter", text, [({"model": n}, boxes.get(n, 0)) for n in models])


def _stages(stats: Stats) -> Iterator[str]:
    stages = _at(stats, "stages").items()
    text = "What a stage took: frames, and results of frames; of a source, what it gave."
    taken = [
        ({"stage": name}, _number(one, "results_out" if one.get("source") else "results_in")) for name, one in stages
    ]
    yield _family("frames_total", "counter", text, taken)
    for label, families in (("stage", _STAGE), ("stream", _SOURCE)):
        for family, kind, text, key in families:
            yield _family(family, kind, text, [({label: name}, _number(one, key)) for name, one in stages])
    reasons = [(name, _at(one, "source").get("reason")) for name, one in stages]
    down = [({"stream": name, "reason": str(reason)}, 1.0) for name, reason in reasons if reason]
    yield _family("source_down_info", "gauge", "Why a camera gives no frames.", down)
    reasons = [(name, one.get("failing")) for name, one in stages]
    failing = [({"stage": name, "reason": str(reason)}, 1.0) for name, reason in reasons if reason]
    yield _family("stage_down_info", "gauge", "Why results are lost at a stage now.", failing)
    part = _number(stats, "seconds", 0.01)
    text = "A stage's time: working, starved of input, or blocked by a full queue."
    spent = [
        ({"stage": name, "state": state}, None if part is None else _number(one, key, part))
        for name, one in stages
        for state, key in _SPENT.items()
    ]
    yield _family("stage_seconds_total", "counter", text, spent)


def _streams(totals: Stats) -> Iterator[str]:
    """What became of each camera's frames at each stage, and at the last ones together."""
    found = [({"stage": name, "stream": stream}, one) for name, of in totals.items() for stream, one in of.items()]
    lasts = dict[str, list[Stats]]()
    for labels, one in found:
        if one["is_last"]:
            lasts.setdefault(labels["stream"], []).append(one)
    text = "From capture to the end of the last stages."
    rows = [row for stream, all_of in lasts.items() for row in _histogram({"stream": stream}, all_of)]
    yield _family("latency_seconds", "histogram", text, (), rows)
    text = "From capture until a stage was done with a frame."
    rows = [row for labels, one in found for row in _histogram(labels, [one])]
    yield _family("stage_latency_seconds", "histogram", text, (), rows)
    text = "What a stage never saw: its queue was full, a join lost the other part, or the stage had ended."
    lost = [
        ({**labels, "cause": cause}, float(number))
        for labels, one in found
        for cause, number in {"queue": 0, **one["dropped"]}.items()
    ]
    yield _family("dropped_total", "counter", text, lost)


def _histogram(labels: Mapping[str, str], totals: Sequence[Stats]) -> Iterator[tuple[str, Sample]]:
    """The lines of a histogram, of several counted together."""
    count = sum(one["results"] for one in totals)
    for bound, *numbers in zip(_BOUNDS, *(one["upto"] for one in totals), strict=True):
        yield "bucket", ({**labels, "le": bound}, sum(numbers))
    yield "bucket", ({**labels, "le": "+Inf"}, count)
    yield "sum", (labels, sum(one["latency_s"] for one in totals))
    yield "count", (labels, count)


def _disks(folders: Mapping[str, str]) -> Iterator[str]:
    """How much room is left where a stage writes."""
    free, size = list[Sample](), list[Sample]()
    for name, path in folders.items():
        folder = Path(path).absolute()
        while not folder.exists():  # the stage will make it
            folder = folder.parent
        with suppress(OSError):  # a disk that is gone has no room that is known
            found = os.statvfs(folder)
            free.append(({"stage": name}, found.f_bavail * found.f_frsize))
            size.append(({"stage": name}, found.f_blocks * found.f_frsize))
    yield _family("disk_free_bytes", "gauge", "What is left of the disk that a stage writes to.", free)
    yield _family("disk_size_bytes", "gauge", "The size of the disk that a stage writes to.", size)


def _engines(engines: Stats) -> Iterator[str]:
    """Who runs each model, and who stands before it in the chain and does not."""
    runs = [
        ({"model": name, "engine": str(one.get("engine") or one.get("backend"))}, 1.0) for name, one in engines.items()
    ]
    yield _family("engine_info", "gauge", "Who runs a model.", runs)
    others = [(name, other) for name, one in engines.items() for other in one.get("skipped", ())]
    skipped = [({"model": name, "engine": one["engine"], "why": one["why"]}, 1.0) for name, one in others]
    yield _family("engine_skipped_info", "gauge", "An engine of the chain that does not run a model.", skipped)


def _budgets(budgets: Stats) -> Iterator[str]:
    seconds = _at(budgets, "governor", "seconds")
    settings = [({"setting": name}, value) for name, value in seconds.items()]
    yield _family("governor_setting_seconds_total", "counter", "Time in each setting.", settings)
    used = _at(budgets, "used")
    if used.get("unit") == "cores":
        yield _family("cpu_core_seconds_total", "counter", "CPU time.", [({}, _number(used, "total"))])
    elif used:
        modeled_s, missing_s = used["modeled_s"], used["missing_s"]
        times = {"modeled": modeled_s, "measured": used["covered_s"] - modeled_s, "missing": missing_s}
        kind = {"kind": "modeled" if modeled_s else "measured"}  # modeled where any of it is
        yield _family("power_watts", "gauge", "Power, the mean of the run.", [(kind, _number(used, "mean"))])
        yield _family("energy_joules_total", "counter", "Energy.", [(kind, _number(used, "total"))])
        known = [({"kind": name}, value) for name, value in times.items()]
        yield _family("power_known_seconds_total", "counter", "Time by how its power is known.", known)


def _at(stats: Stats, *keys: str) -> Stats:
    """A part of the statistics; empty where there is none."""
    for key in keys:
        stats = stats.get(key) or {}
    return stats


def _number(stats: Stats, key: str, scale: float = 1) -> float | None:
    """The number at a dotted key, in the metric's unit; None where there is none."""
    *path, last = key.split(".")
    value = _at(stats, *path).get(last)
    return value * scale if isinstance(value, (int, float)) else None


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {value!r}" if pairs else f"{name} {value!r}"
