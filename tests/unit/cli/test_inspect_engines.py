"""What ``edgert inspect`` tells of the engines in a finished bundle."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from edgert.bundle.bundle import open_bundle, save_bundle
from edgert.cli import app
from edgert.cli.bundle_tables import nodes_in_words, show_engines
from edgert.compiler.finish import EngineReport, compiled_engines
from edgert.zip_archive import member_of
from tests.helpers.trt_bundle import SPLIT, engine, finished, trt_bundle

MOVED: dict[str, Any] = {
    "answer": {
        "inspector": json.dumps(
            {
                "Layers": [
                    {"Name": "Reformatting CopyNode for Input Tensor 0", "LayerType": "Reformat"},
                    {"Name": "conv + relu", "LayerType": "CaskConvolution"},
                ]
            }
        )
    },
    "layer_ms": [("Reformatting CopyNode for Input Tensor 0", 0.25), ("conv + relu", 0.75)],
}


pytestmark = pytest.mark.usefixtures("own_cache")


def reports(path: Path) -> tuple[EngineReport, ...]:
    with open_bundle(path) as bundle:
        return compiled_engines(bundle)


def printed(engines: tuple[EngineReport, ...]) -> str:
    out = io.StringIO()
    show_engines(Console(file=out), engines)
    return out.getvalue()


def test_an_engine_against_its_plan(tmp_path: Path) -> None:
    (one,) = reports(finished(tmp_path, **MOVED))
    assert (one.model, one.number, one.library, one.size_bytes) == ("parts", 0, "TensorRT 10.3.0", 4)
    found, profile = one.checks.placement, one.checks.profile
    assert (found.source, found.layers, found.reformats, found.loadables) == ("inspector", 2, 1, 0)
    assert {name: (count.planned, count.actual) for name, count in found.nodes.items()} == {
        "dla0": (1, 0),
        "gpu": (1, 2),
    }
    assert profile is not None and profile.runs == 30 and one.checks.outputs.relative_error is not None
    assert one.facts["power mode"] == "15W" and one.checks.memory.context_bytes == 2**20
    assert {layer.name[:4]: layer.nodes for layer in one.checks.layers} == {"conv": ["conv", "relu"], "Refo": []}


def test_as_a_table(tmp_path: Path) -> None:
    text = printed(reports(finished(tmp_path, **MOVED)))
    assert "compiled on orin-nx-16gb, 15W" in text and "parts-0" in text and "10.3.0" in text
    assert "dla0 1 → 0, gpu 1 → 2" in text and "1.0 MiB" in text
    assert "slowest of 2 layers of parts-0, medians of 30 runs" in text and "75.0 %" in text and "conv, relu" in text


def test_several_engines_of_a_model_and_their_weights(tmp_path: Path) -> None:
    parts = engine(dict.fromkeys(SPLIT, "gpu"), 2 / 3), engine(dict.fromkeys(SPLIT, "dla0"), 1 / 3)
    found = reports(finished(tmp_path, *parts))
    assert [(one.number, one.weight) for one in found] == [(0, 67), (1, 33)]
    text = printed(found)
    assert "parts-0, weight 67" in text and "parts-1, weight 33" in text


def test_where_nobody_tells_where_nodes_run_nothing_is_made_up(tmp_path: Path) -> None:
    (one,) = reports(finished(tmp_path))
    assert one.checks.placement.source == "" and nodes_in_words(one) == "dla0 1, gpu 1"
    assert "?" in printed((one,))


def test_what_an_earlier_edgert_wrote_has_gaps(tmp_path: Path) -> None:
    path = finished(tmp_path, **MOVED)
    with open_bundle(path) as bundle:
        manifest, content = bundle.manifest, {name: bundle.read(name) for name in bundle.manifest.members}
    ((entry,),) = (one.engines["parts"] for one in manifest.compiled.values())
    checks = json.loads(content[entry.checks])
    del checks["layers"], checks["memory"], checks["placement"]["nodes"]
    content[entry.checks] = json.dumps(checks).encode()
    members = {name: member_of(data) for name, data in content.items()}
    save_bundle(path, manifest.model_copy(update={"members": members}), content)
    (one,) = reports(path)
    assert one.checks.memory.context_bytes is None and one.checks.layers == [] and nodes_in_words(one) == "?"


def test_the_command_prints_and_writes_json(tmp_path: Path) -> None:
    path, out = finished(tmp_path, **MOVED), tmp_path / "told.json"
    result = CliRunner().invoke(app, ["inspect", str(path), "--json", str(out)])
    assert result.exit_code == 0 and "slowest of 2 layers" in result.output
    (report,) = json.loads(out.read_text())["reports"]
    checks = report["checks"]
    assert checks["placement"]["nodes"]["dla0"] == {"planned": 1, "actual": 0}
    assert checks["profile"]["median_ms"] > 0 and report["target"].startswith("orin-nx-16gb-10.3.0-")


def test_a_bundle_that_was_not_finished_has_no_table(tmp_path: Path) -> None:
    out = tmp_path / "told.json"
    result = CliRunner().invoke(app, ["inspect", str(trt_bundle(tmp_path / "dock.edgert")), "--json", str(out)])
    assert result.exit_code == 0 and "compiled on" not in result.output
    assert json.loads(out.read_text())["reports"] == []
