"""The metrics of a run, read back by Prometheus' own parsers."""

import re
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from edgert._version import __version__
from edgert.memory import Counts
from edgert.runtime import SourceStats, summarize
from edgert.runtime.json_form import plain
from edgert.runtime.recent import totals
from edgert.runtime.summary import RunNotes
from edgert.stages.sink.web.prometheus import RunCollector, exposition
from tests.helpers.command import ROOT
from tests.helpers.stages import Does, Numbers, chain

AWKWARD = 'TensorRT says "no":\nC:\\trt'
USED = {"unit": "W", "limit": 15.0, "mean": 9.5, "total": 19.0, "covered_s": 2.0, "modeled_s": 0.0, "missing_s": 0.5}
ENGINES = {
    "parts": {
        "engine": "onnxruntime",
        "backend": "ort",
        "skipped": [{"engine": "tensorrt", "why": AWKWARD, "model": ""}],
    },
    "plates": {"backend": "openvino"},
}
BUDGETS = {
    "governor": {"seconds": {"all": 1.5, "half": 0.5}, "level": 1, "switches": 3, "warnings": 0},
    "throttled": 4,
    "used": USED,
    "memory": {"total_bytes": 1 << 20},
}
PROMISED = {"power": 15.0, "cpu": 1.5, "latency": 0.06, "memory": 1 << 30, "when_exceeded": "degrade"}


class Camera(Numbers):
    """Has lost frames, and is away."""

    def stats(self) -> SourceStats:
        return SourceStats(lost=5, reconnects=2, up=False, state_s=7.5, frame_age_s=8.0, reason=AWKWARD)


def stats(**changes: Any) -> dict[str, Any]:
    """A run of two seconds: 10 frames in, 6 out, 2 lost."""
    source, stage, sink = chain(Camera(), Does(), Does(), capacity=1, drop="oldest")
    source.meter.results_out, stage.meter.results_in, stage.meter.results_out, sink.meter.results_in = 10, 8, 8, 6
    stage.meter.busy_ns, stage.meter.wait_in_ns = 500_000_000, 250_000_000
    for latency_ms in (10, 11, 40):
        stage.meter.done("north", latency_ms * 500_000)
        sink.meter.done("north", latency_ms * 1_000_000)
    sink.meter.done("south", 2_000_000_000)
    sink.meter.losses.update({("north", "queue"): 2, ("south", "join"): 1})
    nodes = [source, stage, sink]
    events = {"oc1": 0, "oc3": 12}
    summary = summarize(nodes, 2_000_000_000, Counts(20, 600, 7), 123, ENGINES, BUDGETS, RunNotes(over_current=events))
    more = {
        "promised": PROMISED,
        "totals": totals(nodes),
        "folders": {"video": "/proc/none/{date}"},
        "started_s": 1.7e9,
    }
    given: dict[str, Any] = plain({**summary.to_json(), **more, **changes})
    return given


def metrics_text(given: dict[str, Any]) -> str:
    return exposition(given, "text/plain")[1].decode()


def values(given: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """Return each value by its sample's name and label values, in the order of the labels' names."""
    return by_labels(text_string_to_metric_families(metrics_text(given)))


def by_labels(metrics: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    samples = [sample for metric in metrics for sample in metric.samples]
    return {(one.name, *(one.labels[key] for key in sorted(one.labels))): one.value for one in samples}


GIVEN = {"power": {}, "cores": {"budgets": {**BUDGETS, "used": {**USED, "unit": "cores"}}}}
OTHER_UNITS = re.compile(r"_(ms|us|ns|milliseconds|minutes|hours|kib|mib|kilobytes|megabytes|percent|watt|joule)(_|$)")


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_names_kinds_and_help_are_those_that_promtool_asks_for(given: dict[str, Any]) -> None:
    metrics = list(RunCollector(stats(**given)).collect())
    assert len({metric.name for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert re.fullmatch(r"edgert_[a-z]+(_[a-z]+)*", metric.name) and not OTHER_UNITS.search(metric.name)
        assert metric.documentation.endswith(".") and metric.type in ("counter", "gauge", "histogram", "info")
        assert not metric.name.endswith(("_total", "_info", "_count", "_sum", "_bucket", "_counter", "_gauge"))
        for sample in metric.samples:
            assert sample.name.endswith("_total") == (metric.type == "counter")
            assert sample.name.endswith(("_sum", "_count", "_bucket")) == (metric.type == "histogram")
            assert ("le" in sample.labels) == sample.name.endswith("_bucket")


def test_open_metrics_say_the_same() -> None:
    content_type, content = exposition(stats(), "application/openmetrics-text")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    text, open_text = values(stats()), by_labels(open_metrics(content.decode()))
    for found in (text, open_text):
        del found["edgert_disk_free_bytes", "video"]  # other programs write to the disk
    assert text == open_text


def test_frames_stages_and_latency() -> None:
    found = values(stats())
    assert found["edgert_build_info", __version__] == 1
    assert [found["edgert_frames_total", stage] for stage in "012"] == [10, 8, 6]
    assert (found["edgert_captured_frames_total",], found["edgert_finished_frames_total",]) == (10, 6)
    assert found["edgert_results_total", "1"] == 8
    assert found["edgert_stage_seconds_total", "1", "working"] == pytest.approx(0.5)
    assert found["edgert_stage_seconds_total", "1", "starved"] == pytest.approx(0.25)
    assert found["edgert_source_lost_frames_total", "0"] == 5 and ("edgert_source_lost_frames_total", "1") not in found
    assert found["edgert_copies_total",] == 20 and found["edgert_copied_bytes_total",] == 600
    assert found["edgert_allocations_total",] == 7 and found["edgert_resident_memory_peak_bytes",] == 123


def test_over_current_events_of_each_limit() -> None:
    found = values(stats())
    assert [found["edgert_over_current_events_total", limit] for limit in ("oc1", "oc3")] == [0, 12]
    assert not [name for name, *_ in values(stats(over_current={})) if "over_current" in name]


def test_boxes_that_were_left_out_of_each_model() -> None:
    plain = {**stats(), "left_out": {"find": 3}, "engine": {"find": {}, "name": {}}}
    found = values(plain)
    assert [found["edgert_left_out_boxes_total", model] for model in ("find", "name")] == [3, 0]


def test_latency_of_each_camera_in_buckets_that_hold_all_that_is_faster() -> None:
    found = values(stats())
    north = {le: found["edgert_latency_seconds_bucket", le, "north"] for le in ("0.005", "0.01", "0.025", "0.05", "10")}
    assert north == {"0.005": 0, "0.01": 1, "0.025": 2, "0.05": 3, "10": 3}  # a bound is part of its bucket
    assert (
        found["edgert_latency_seconds_bucket", "+Inf", "north"] == found["edgert_latency_seconds_count", "north"] == 3
    )
    assert found["edgert_latency_seconds_sum", "north"] == pytest.approx(0.061, rel=0.03)
    assert found["edgert_latency_seconds_bucket", "1", "south"] == 0
    assert found["edgert_latency_seconds_bucket", "2.5", "south"] == found["edgert_latency_seconds_count", "south"] == 1
    stage = {stage: found["edgert_stage_latency_seconds_bucket", "0.01", stage, "north"] for stage in "12"}
    assert stage == {"1": 2, "2": 1} and found["edgert_stage_latency_seconds_count", "1", "north"] == 3


def test_what_was_dropped_of_which_camera_and_why() -> None:
    found = values(stats())
    dropped = {key[1:]: value for key, value in found.items() if key[0] == "edgert_dropped_total"}
    assert dropped == {
        ("queue", "1", "north"): 0,
        ("queue", "2", "north"): 2,
        ("queue", "2", "south"): 0,
        ("join", "2", "south"): 1,
    }


def test_cameras_and_why_they_are_away() -> None:
    found = values(stats())
    assert found["edgert_source_up", "0"] == 0 and found["edgert_source_state_seconds", "0"] == 7.5
    assert found["edgert_source_last_frame_age_seconds", "0"] == 8 and found["edgert_source_reconnects_total", "0"] == 2
    assert found["edgert_source_down_info", AWKWARD, "0"] == 1
    given = stats()
    given["stages"]["0"]["source"].update(up=True, frame_age_s=None, reason="")
    found = values(given)
    assert found["edgert_source_up", "0"] == 1
    assert not [
        name for name, *_ in found if name in ("edgert_source_down_info", "edgert_source_last_frame_age_seconds")
    ]
    given["stages"]["0"]["source"].update(up=None, state_s=None)  # a file
    assert not [name for name, *_ in values(given) if name in ("edgert_source_up", "edgert_source_state_seconds")]


def test_disks_that_are_written_to_and_stages_that_are_down() -> None:
    given = stats()
    given["folders"] = {"video": str(ROOT / "none" / "there"), "gone": "/\0", "long": "/" + "x" * 300}
    given["stages"]["2"]["failing"] = AWKWARD
    found = values(given)
    assert 0 < found["edgert_disk_free_bytes", "video"] < found["edgert_disk_size_bytes", "video"]
    assert found["edgert_stage_down_info", AWKWARD, "2"] == 1 and found["edgert_start_time_seconds",] == 1.7e9


def test_engines_and_those_that_are_skipped() -> None:
    found = values(stats())
    assert found["edgert_engine_info", "onnxruntime", "parts"] == 1
    assert found["edgert_engine_info", "openvino", "plates"] == 1
    assert found["edgert_engine_skipped_info", "tensorrt", "parts", AWKWARD] == 1  # escaped, and read back as it was


def test_budgets_governor_and_power() -> None:
    found = values(stats())
    assert found["edgert_budget_power_watts",] == 15 and found["edgert_budget_latency_seconds",] == 0.06
    assert found["edgert_budget_cpu_cores",] == 1.5 and found["edgert_budget_memory_bytes",] == 1 << 30
    assert found["edgert_governor_level",] == 1 and found["edgert_governor_switches_total",] == 3
    assert found["edgert_governor_setting_seconds_total", "half"] == 0.5
    assert found["edgert_throttled_frames_total",] == 4 and found["edgert_planned_memory_bytes",] == 1 << 20
    assert found["edgert_power_watts", "measured"] == 9.5 and found["edgert_energy_joules_total", "measured"] == 19
    known = {kind: found["edgert_power_known_seconds_total", kind] for kind in ("measured", "modeled", "missing")}
    assert known == {"measured": 2.0, "modeled": 0.0, "missing": 0.5}


def test_power_that_is_modeled_in_part_is_called_so() -> None:
    found = values(stats(budgets={**BUDGETS, "used": {**USED, "modeled_s": 0.25}}))
    assert found["edgert_power_watts", "modeled"] == 9.5 and ("edgert_power_watts", "measured") not in found
    assert found["edgert_power_known_seconds_total", "measured"] == 1.75


def test_cpu_time_in_the_place_of_power() -> None:
    found = values(stats(budgets={**BUDGETS, "used": {**USED, "unit": "cores"}}))
    assert found["edgert_cpu_core_seconds_total",] == 19
    assert not [name for name, *_ in found if name in ("edgert_power_watts", "edgert_energy_joules_total")]


def test_what_is_not_known_is_left_out() -> None:
    assert set(values({})) == {("edgert_build_info", __version__)}
    found = values(stats(budgets={}, promised={"when_exceeded": "warn"}, totals={}))
    assert not [name for name, *_ in found if "budget" in name or "governor" in name or "power" in name]
    assert not [name for name, *_ in found if "latency" in name or "dropped" in name]
    assert values(stats(fps=None, seconds=float("nan"), peak_rss_bytes=None))["edgert_frames_total", "0"] == 10


def every_state() -> list[dict[str, Any]]:
    """States that have every metric among them."""
    watts, cores = stats(), stats(budgets={"used": {**USED, "unit": "cores"}})
    watts["stages"]["2"]["failing"] = "no space left"
    return [watts, cores]


def every_name() -> set[str]:
    """Names of all samples that edgert exports."""
    metrics = [metric for state in every_state() for metric in RunCollector(state).collect()]
    return {sample.name for metric in metrics for sample in metric.samples}


def test_the_page_lists_what_there_is() -> None:
    watts, cores = every_state()
    given = re.findall(r"^# TYPE (\w+)", metrics_text(watts) + metrics_text(cores), re.MULTILINE)
    table = [line for line in (ROOT / "docs/metrics.md").read_text().splitlines() if line.startswith("| `edgert_")]
    assert set(given) == {name for line in table for name in re.findall(r"`(edgert_\w+)`", line)}
