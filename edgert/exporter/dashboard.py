"""The Grafana dashboard of a fleet: its panels, and the JSON that Grafana reads.

Format: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SCHEMA = 41
_COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HERE = 'instance=~"$instance"'
_LATELY = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel.

    Attributes:
        title: title above the panel.
        kind: type in Grafana: ``stat``, ``timeseries`` or ``table``.
        unit: unit of the values in Grafana.
        queries: PromQL query → legend.
        bad_from: smallest value shown in red; None shows no value in red.
        width: width in columns; the dashboard has 24.
        height: height in rows; a row has 30 pixels.
    """

    title: str
    kind: str
    unit: str
    queries: Mapping[str, str]
    bad_from: float | None = None
    width: int = 12
    height: int = 8


def _count(title: str, query: str, bad_from: float | None = 1) -> Panel:
    return Panel(title, "stat", "short", {query: ""}, bad_from, width=6, height=4)


def _lines(title: str, unit: str, query: str, legend: str) -> Panel:
    return Panel(title, "timeseries", unit, {query: legend})


PANELS: Sequence[Panel] = (
    _count("Boards that answer", f'count(up{{job="edgert", {_HERE}}} == 1) or vector(0)', None),
    _count("Boards that do not", f'count(up{{job="edgert", {_HERE}}} == 0) or vector(0)'),
    _count("Cameras down", f"count(edgert_source_up{{{_HERE}}} == 0) or vector(0)"),
    _count(
        "Stages down or stuck",
        f"count(edgert_stage_down_info{{{_HERE}}} or edgert_stage_stuck_seconds{{{_HERE}}} > 0) or vector(0)",
    ),
    Panel(
        "What is down, and why",
        "table",
        "short",
        {f"edgert_source_down_info{{{_HERE}}}": "", f"edgert_stage_down_info{{{_HERE}}}": ""},
        width=_COLUMNS,
        height=6,
    ),
    _lines(
        "Frames a second",
        "short",
        f"sum by (instance, stream) (rate(edgert_latency_seconds_count{{{_HERE}}}{_LATELY}))",
        "{{instance}} {{stream}}",
    ),
    Panel(
        "Latency, 99th percentile",
        "timeseries",
        "s",
        {
            "histogram_quantile(0.99, sum by (instance, stream, le) "
            f"(rate(edgert_latency_seconds_bucket{{{_HERE}}}{_LATELY})))": "{{instance}} {{stream}}",
            f"edgert_budget_latency_seconds{{{_HERE}}}": "{{instance}} budget",
        },
    ),
    _lines(
        "Lost results a second, by cause",
        "short",
        f"sum by (instance, stage, cause) (rate(edgert_dropped_total{{{_HERE}}}{_LATELY}))",
        "{{instance}} {{stage}} {{cause}}",
    ),
    _lines(
        "Time that stages work",
        "percentunit",
        f'rate(edgert_stage_seconds_total{{state="working", {_HERE}}}{_LATELY})',
        "{{instance}} {{stage}}",
    ),
    _lines(
        "Age of the newest frame",
        "s",
        f"edgert_source_last_frame_age_seconds{{{_HERE}}}",
        "{{instance}} {{stream}}",
    ),
    _lines("Results that wait", "short", f"edgert_queued_results{{{_HERE}}}", "{{instance}} {{stage}}"),
    Panel(
        "Power",
        "timeseries",
        "watt",
        {
            f"rate(edgert_energy_joules_total{{{_HERE}}}{_LATELY})": "{{instance}} {{kind}}",
            f"edgert_budget_power_watts{{{_HERE}}}": "{{instance}} budget",
        },
    ),
    _lines(
        "Frames left out for a budget, a second",
        "short",
        f"rate(edgert_throttled_frames_total{{{_HERE}}}{_LATELY})",
        "{{instance}}",
    ),
    _lines("Most memory held", "bytes", f"edgert_resident_memory_peak_bytes{{{_HERE}}}", "{{instance}}"),
    _lines(
        "Free disk",
        "percentunit",
        f"edgert_disk_free_bytes{{{_HERE}}} / edgert_disk_size_bytes{{{_HERE}}}",
        "{{instance}} {{stage}}",
    ),
    Panel(
        "Starts and reconnects within an hour",
        "timeseries",
        "short",
        {
            f"changes(edgert_start_time_seconds{{{_HERE}}}[1h])": "{{instance}} starts",
            f"increase(edgert_source_reconnects_total{{{_HERE}}}[1h])": "{{instance}} {{stream}} reconnects",
        },
        width=_COLUMNS,
    ),
)


def dashboard() -> str:
    """Return the dashboard as JSON."""
    made = {
        "uid": "edgert-fleet",
        "title": "edgert",
        "tags": ["edgert"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource(), _instances()]},
        "panels": list(_placed_panels()),
    }
    return json.dumps(made, indent=1) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "label": "Prometheus", "query": "prometheus"}


def _instances() -> dict[str, Any]:
    return {
        "name": "instance",
        "type": "query",
        "label": "Board",
        "datasource": _SOURCE,
        "query": 'label_values(up{job="edgert"}, instance)',
        "refresh": 2,  # when the time range changes
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed_panels() -> Iterator[dict[str, Any]]:
    """Yield the panels' JSON, placed from left to right; a row is as high as its last panel."""
    x = y = below = 0
    for number, panel in enumerate(PANELS, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, below
        yield {
            "id": number,
            "title": panel.title,
            "type": panel.kind,
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
            "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
            "targets": list(_targets(panel)),
        }
        x, below = x + panel.width, y + panel.height


def _defaults(panel: Panel) -> dict[str, Any]:
    if panel.bad_from is None:
        return {"unit": panel.unit}
    steps = [{"value": None, "color": "green"}, {"value": panel.bad_from, "color": "red"}]
    return {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}


def _targets(panel: Panel) -> Iterator[dict[str, Any]]:
    for number, (query, legend) in enumerate(panel.queries.items()):
        target: dict[str, Any] = {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query}
        if panel.kind == "table":
            target |= {"format": "table", "instant": True}
        elif legend:
            target["legendFormat"] = legend
        yield target
