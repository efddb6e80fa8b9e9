"""The Grafana dashboard and the alerts ask for metrics that edgert exports, in PromQL, in Grafana's own form."""

import json
import re
from typing import Any

import pytest
import yaml

from edgert.exporter.fleet import render
from tests.helpers.command import ROOT
from tests.unit.stages.sink.test_metrics import every_name

MADE: dict[str, Any] = json.loads(render("fleet/compose/grafana/edgert.json.j2"))
QUERIES = [target["expr"] for panel in MADE["panels"] for target in panel["targets"]]
(GROUP,) = yaml.safe_load((ROOT / "configs" / "prometheus" / "alerts.yaml").read_text())["groups"]
RULES = [rule["expr"] for rule in GROUP["rules"]]
PROMETHEUS_OWN = {"up"}


@pytest.mark.parametrize("query", [*QUERIES, *RULES])
def test_a_query_is_promql_of_metrics_that_there_are(query: str) -> None:
    promql = pytest.importorskip("promql_parser", reason="pip install -e '.[test]'")
    parsed = promql.parse(query.replace("$__rate_interval", "5m"))
    names = set(re.findall(r"\b(edgert_\w+|up)\b(?=[{\[ )]|$)", query))
    assert parsed.prettify() and names
    assert names - PROMETHEUS_OWN <= every_name()


def test_every_panel_has_its_place() -> None:
    taken = set[tuple[int, int]]()
    for panel in MADE["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in MADE["panels"]}) == len(MADE["panels"]) == 16


def test_grafanas_own_types_have_all_of_it() -> None:
    """Grafana's SDK is made of its schemas. What it does not know would be lost on the way through it."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="pip install -e '.[test]'")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    read = json.loads(JSONEncoder().encode(models.Dashboard.from_json(MADE)))
    assert lost(MADE, read, "dashboard") == []
    kinds = {panel["type"] for panel in MADE["panels"]}
    assert kinds <= {"stat", "timeseries", "table"}, "panels that every Grafana has"


def lost(written: Any, read: Any, place: str) -> list[str]:
    """What is in the first and not in the second."""
    if isinstance(written, dict):
        missing = [f"{place}.{key}" for key in written if not isinstance(read, dict) or key not in read]
        return missing + [one for key in written if f"{place}.{key}" not in missing
                          for one in lost(written[key], read[key], f"{place}.{key}")]  # fmt: skip
    if isinstance(written, list):
        pairs = zip(written, read, strict=True)
        return [one for number, (a, b) in enumerate(pairs) for one in lost(a, b, f"{place}[{number}]")]
    return [] if written == read else [f"{place}: {written!r} became {read!r}"]
