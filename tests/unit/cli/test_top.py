from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from edgert.cli.top import top
from tests.helpers.sysfs import plant

app = typer.Typer()
app.command()(top)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_one_sample_as_json(tmp_path: Path) -> None:
    plant(tmp_path, "agx-orin-jp6")
    sample = json.loads(run("--once", "--json", "--root", str(tmp_path)))
    power = sample["readings"]["power"]
    assert (power["kind"], power["value"]) == ("measured", pytest.approx(12.365))
    assert sample["readings"]["emc.clock"]["value"] is None
    assert sample["pipelines"] == {}


def test_a_table_says_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    plant(tmp_path, "nano")
    text = run("--once", "--root", str(tmp_path))
    assert "1.02 W" in text
    assert "unavailable" in text


def test_on_this_machine_processor_and_memory_are_measured() -> None:
    readings = json.loads(run("--once", "--json"))["readings"]
    assert {readings[name]["kind"] for name in ("cpu.load", "memory.total", "memory.rss")} == {"measured"}


def test_a_pipeline_that_does_not_answer_says_so(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"
    told = json.loads(run(url, "file:///etc/passwd", "--once", "--json", "--root", str(tmp_path)))["pipelines"]
    assert "refused" in told[url]["trouble"]
    assert "not a web address" in told["file:///etc/passwd"]["trouble"]
    assert "no answer" in run(url, "--once", "--root", str(tmp_path))
