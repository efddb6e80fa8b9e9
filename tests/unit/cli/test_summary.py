import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgert.cli.run_view import _progress_line, print_summary, written_files
from edgert.config import load_pipeline
from edgert.memory import Counts
from edgert.runtime import summarize
from edgert.runtime.summary import RunNotes
from tests.helpers.command import in_process

FILE = """\
budgets: {power: 15W, when_exceeded: degrade}
stages:
  belt: {source: "synthetic:noise", size: 64x64, limit: 1}
  out: {sink: "null", from: belt}
"""
GOVERNOR = {
    "setting": "all frames",
    "seconds": {"all frames": 3.0, "50 % of the frames": 1.0},
    "switches": 1,
    "warnings": 0,
    "events": [{"at_s": 3.0, "kind": "switch", "setting": "", "reason": "all frames -> 50 % of the frames: hot"}],
    "notes": ["power: lost (gone)"],
}
USED = {"unit": "W", "limit": 15.0, "mean": 12.34, "total": 49.4, "covered_s": 4.0, "modeled_s": 1.0, "missing_s": 0.1}


def summary_of(folder: Path, capsys: pytest.CaptureFixture[str], **budgets: Any) -> str:
    (folder / "p.yaml").write_text(FILE)
    given = {"governor": GOVERNOR, "throttled": 7, **budgets}
    print_summary(load_pipeline(folder / "p.yaml"), summarize([], 4_000_000_000, Counts(), 1 << 20, {}, given))
    return " ".join(capsys.readouterr().out.split())


def test_a_summary_tells_settings_actions_and_power_beside_its_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = summary_of(tmp_path, capsys, used=USED)
    assert "budgets: all frames 75% of the time, 50 % of the frames 25% of the time; 7 frames throttled" in said
    assert "power: 12.3 of 15 W on average (1 s modeled)" in said
    assert "3.0 s switch: all frames -> 50 % of the frames: hot" in said
    assert "note: power: lost (gone)" in said
    assert "over budget" not in said


@pytest.mark.parametrize(
    ("unit", "words"),
    [("W", "over budget: power 16 W, promised 15"), ("cores", "over budget: CPU time 16 cores, promised 15")],
)
def test_a_mean_above_the_budget_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unit: str, words: str
) -> None:
    assert words in summary_of(tmp_path, capsys, used={**USED, "unit": unit, "mean": 16.0})


def test_power_that_nobody_knows_is_not_told_as_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = summary_of(tmp_path, capsys, used={**USED, "mean": None, "total": 0.0, "covered_s": 0.0, "missing_s": 4.0})
    assert "power: 0" not in said and "on average" not in said


def test_over_current_events_are_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.yaml").write_text(FILE)
    made = summarize([], 4_000_000_000, Counts(), 1 << 20, {}, None, RunNotes(over_current={"oc1": 0, "oc3": 7}))
    assert made.to_json()["over_current"] == {"oc1": 0, "oc3": 7}
    print_summary(load_pipeline(tmp_path / "p.yaml"), made)
    assert "drew too much: oc3 (instantaneous power) 7 events" in " ".join(capsys.readouterr().out.split())


def test_engines_that_nobody_asked_for_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.yaml").write_text(FILE)
    file = load_pipeline(tmp_path / "p.yaml")
    skipped = [
        {"engine": "tensorrt", "why": "not installed", "model": ""},
        {"engine": "onnxruntime-cuda", "why": "no provider", "model": ""},
    ]
    engines = {name: {"backend": "ort", "version": "1.20", "skipped": skipped} for name in ("parts", "plates")}
    summary = summarize([], 4_000_000_000, Counts(), 1 << 20, engines)
    print_summary(replace(file, passed_over={"tensorrt": "not installed"}), summary)
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "engines: is left out, so the best here; tensorrt skipped: not installed; "
        "onnxruntime-cuda skipped: no provider" in shown
    )
    assert shown.count("tensorrt skipped") == 1
    print_summary(file, summary)
    assert "left out" not in capsys.readouterr().out


def test_the_precision_that_auto_chose_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines = {"parts": {"backend": "ort", "version": "1.20", "precision": "fp32"}}
    summary = summarize([], 4_000_000_000, Counts(), 1 << 20, engines)
    for asked, words in (
        ("auto", "ort 1.20 fp32 (precision: auto), compiled now"),
        ("fp32", "ort 1.20 fp32, compiled"),
    ):
        print_summary(load_pipeline("hello", [f"models.parts.precision={asked}"]), summary)
        assert words in " ".join(capsys.readouterr().out.split())


def test_files_are_named_that_were_written_and_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    for number, name in enumerate(["yard-1.mp4", "yard-2.mp4", "gate-1.mp4", "gate-2.mp4", "old-1.mp4", "empty-1.mp4"]):
        (tmp_path / "clips" / name).write_bytes(b"" if "empty" in name else b"x")
        os.utime(tmp_path / "clips" / name, (0, 100 if "old" in name else 1000 + number))
    pattern = tmp_path / "clips" / "{stream}-{time}.mp4"
    assert list(written_files(pattern, 1000)) == [f"4 files in {tmp_path}/clips, the last: gate-2.mp4"]
    assert list(written_files(pattern, 1004)) == [
        str(tmp_path / "clips" / name) for name in ("gate-1.mp4", "gate-2.mp4")
    ]
    assert list(written_files(tmp_path / "clips" / "yard-1.mp4", 900)) == [f"{tmp_path}/clips/yard-1.mp4"]
    assert list(written_files(tmp_path / "clips" / "old-1.mp4", 900)) == []
    assert list(written_files(tmp_path / "absent" / "{date}.mp4", 0)) == []
    assert list(written_files(Path("/dev/null"), 10**12)) == ["/dev/null"]


def test_a_start_that_fails_shows_its_error_alone(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way of the folder")
    (tmp_path / "p.yaml").write_text(
        "stages:\n  belt: {source: 'synthetic:noise', size: 64x64, limit: 3}\n"
        "  out: {sink: jsonl, from: belt, path: out/x.jsonl}\n"
    )
    done = in_process("run", "p.yaml", "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith("error: cannot"), done
    assert '"error"' in (tmp_path / "run.json").read_text()
    done = in_process("run", "p.yaml", "--set", "stages.out.path=new/{stream}.jsonl", "--quiet", cwd=tmp_path)
    assert done.returncode == 0 and "→ new/belt.jsonl" in done.stdout, done


def test_the_line_of_a_run_counts_drops_of_the_last_minute_and_says_so() -> None:
    summary = summarize([], 4_000_000_000, Counts(), 1 << 20, {}, {})
    recent = replace(summary.recent, dropped={"queue": 3000, "join": 43})
    assert _progress_line(replace(summary, recent=recent), "").endswith("dropped 3043/min")
