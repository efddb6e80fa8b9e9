"""Ranges in docs/ are those of the runs that are kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools import measured_tables


@pytest.fixture
def tables() -> Any:
    return measured_tables


def write(folder: Path, name: str, gpu: str, figures: dict[str, tuple[float, dict[str, float]]]) -> None:
    rows = [{"name": name, "value": value, "detail": detail} for name, (value, detail) in figures.items()]
    (folder / name).write_text(json.dumps({"machine": {"gpu": gpu}, "figures": rows}))


def test_a_range_is_one_number_where_both_ends_look_alike(tables: Any) -> None:
    assert tables.span([2.04, 1.96], 1) == "2.0" and tables.span([3, 1, 2]) == "1–3" and tables.span([]) == "–"


def test_races_are_ranges_over_runs_for_each_gpu(tables: Any, tmp_path: Path) -> None:
    for number, (gpu, fps) in enumerate((("H100", 1000.0), ("H100", 1100.0), ("H200", 1300.0))):
        figures = {
            "resnet50 b8: careful": (fps, {"cpu_us": 200.0, "alone_p50_ms": 1.0}),
            "resnet50 b8: edgert-rtx": (2 * fps, {"cpu_us": 100.0 + number}),
            "resnet50 b8: edgert-rtx / careful": (2.0, {}),
            "resnet50 b8: edgert-rtx, processor time per frame": (100.0, {}),
        }
        write(tmp_path, f"gpu_peers-{number}.json", gpu, figures)
    found = {name: "\n".join(lines) for name, lines in tables.of_races(tmp_path).items()}
    speeds = found["frames per second"]
    assert speeds.startswith("H100, 2 runs:\n\n|  | resnet50, batch 8 |\n") and "H200" not in speeds
    ours, theirs = "edgert on TensorRT-RTX, submitted frames", "careful PyTorch"
    assert f"| {ours} | 2000–2200 |\n| {theirs} | 1000–1100 |" in speeds
    assert f"| {ours} | 100–101 |" in found["processor time per frame"]
    assert f"| {ours} / {theirs} | 2.00 |" in found["ratios"]


def test_cameras_are_ranges_over_the_times_that_they_filmed(tables: Any, tmp_path: Path) -> None:
    def detail_of(p99_ms: float, lost: int) -> dict[str, float]:
        eight = {"p50_ms": 2.0, "p99_ms": p99_ms, "lost": lost, "given": 240, "cpu_us": 300.0}
        return {**eight, **{f"one_{name}": value for name, value in {**eight, "p99_ms": 2.0, "given": 30}.items()}}

    figures = {
        "yolov8s tensorrt: 8 cameras, p99 / one camera's, run 1 of 2": (1.5, detail_of(3.0, 0)),
        "yolov8s tensorrt: 8 cameras, p99 / one camera's, run 2 of 2": (1.2, detail_of(2.4, 1)),
        "yolov8s tensorrt: frames of 8 cameras lost": (1.0, {}),
        "yolov8s tensorrt: frames of 48 cameras lost": (0.0, {"p50_ms": 5.0, "p99_ms": 9.0, "lost": 0, "given": 1440}),
    }
    write(tmp_path, "gpu_cameras-0.json", "H100", figures)
    lines = tables.of_cameras(tmp_path)["cameras"]
    assert lines[0] == "H100, 1 run:"
    columns = ("yolov8s, tensorrt, 1 camera", "yolov8s, tensorrt, 8 cameras", "yolov8s, tensorrt, 48 cameras")
    assert lines[2] == f"|  | {' | '.join(columns)} |"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:-1]]
    found = {name: cells for name, *cells in rows}
    assert found["frames, and lost"] == ["60, 1", "480, 1", "1440, 0"]
    assert found["the same over that of one camera in the same run"] == ["–", "1.20–1.50", "–"]
    assert found["latency, 99th percentile, ms"] == ["2.00", "2.40–3.00", "9.00"]
    assert found["times filmed"] == ["2", "2", "1"]


def test_checks_are_a_row_for_each_model_with_a_miss_and_one_for_the_others(tables: Any, tmp_path: Path) -> None:
    one = {"true": 3, "said": 4, "named": 5, "wrong": 6, "new": 2}
    good = {"true": 6, "said": 6, "named": 6, "wrong": 6, "new": 6}
    models = {"yolox": {"16": good, "1": one}, "osnet": {"16": one, "1": one}, "parts": {"16": good, "1": one}}
    every = {at: {key: sum(row[at][key] for row in models.values()) for key in one} for at in ("16", "1")}
    (tmp_path / "check.json").write_text(json.dumps({"models": models, "all": every}))
    head, _, *rows = tables.of_check(tmp_path)["check"]
    photos = ("1 photo", "16 photos")
    assert head == f"| model | {' | '.join(f'{one}: {what}' for one in photos for what in ('right', 'named', 'new'))} |"
    assert rows == [
        "| osnet | 3/4 | 5/6 | 2/6 | 3/4 | 5/6 | 2/6 |",
        "| 2 more | 6/8 | 10/12 | 4/12 | 12/12 | 12/12 | 12/12 |",
        "| all 3 | 9/12 | 15/18 | 6/18 | 15/16 | 17/18 | 14/18 |",
        "",
    ]


def test_a_job_is_a_row_for_each_who_does_it(tables: Any, tmp_path: Path) -> None:
    detail = {"lines": 8, "start cpu s": 1.24, "load": 18.9}
    count = {"name": "count, edgert", "value": 4.175, "n": 3, "detail": {**detail, "frames/s": 46.2, "objects": 21}}
    robot = {"name": "robot, edgert", "value": 4.7, "n": 3, "detail": {**detail, "age p50 ms": 34.3}}
    made = {"name": "set-up, edgert", "value": 61.4, "n": 1, "detail": {"megabytes": 497.0, "load": 3.2}}
    for name, figures in (("jobs-count", [count]), ("jobs-robot", [robot]), ("jobs-setup", [made])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"figures": figures}))
    found = tables.of_jobs(tmp_path)["jobs"]
    assert "| count | edgert | 8 | 4.2 | 46 | 1.2 | 21 | 19 |" in found
    assert "| robot | edgert | 8 | 4.7 | age 34 ms | 1.2 | – | 19 |" in found
    assert "| edgert | 61 | 497 | 3 | 1 |" in found


def test_heads_and_sequences_that_are_equal_share_a_row(tables: Any, tmp_path: Path) -> None:
    same = {"equal": 5, "outputs": 5, "found": 40, "far_px": 0.01, "overlap": None}
    heads = {"yolox": same, "detr": {**same, "equal": 4, "overlap": 0.9}, "ssd": {**same, "far_px": 0.02}}
    (tmp_path / "decoders.json").write_text(json.dumps(heads))
    names = {"tracker": "bytetrack", "detections": 7}
    tracks = [
        {**names, "sequence": "a", "idf1": 100.0, "hota": [50.0, 50.0]},
        {**names, "sequence": "b", "idf1": 99.0, "hota": None},
        {**names, "sequence": "c", "idf1": 100.0, "hota": [60.0, 60.5]},
    ]
    (tmp_path / "track.json").write_text(json.dumps({"tracks": tracks}))
    found = tables.of_authors(tmp_path)
    assert found["decoders"][2:-1] == [
        "| yolox, ssd | 10/10 | 80 | 0.0200 | – |",
        "| detr | 4/5 | 40 | 0.0100 | 0.9000 |",
    ]
    assert found["tracks"][2:-1] == [
        "| bytetrack | a, c | 14 | 1.0000 | 0.00–0.50 |",
        "| bytetrack | b | 7 | 0.9900 | – |",
    ]


def test_an_attack_is_a_row_and_what_was_recorded_another_table(tables: Any, tmp_path: Path) -> None:
    name = "6,000 silent, the page"
    figures = [
        {
            "name": f"{name}: memory more",
            "value": 0.46,
            "unit": "MiB",
            "n": 1,
            "detail": {"before_mib": 150.2, "files": 9},
        },
        {"name": f"{name}: memory left", "value": 0.2, "unit": "MiB", "n": 1, "detail": {}},
        {"name": f"{name}: friend's longest wait", "value": 0.5, "unit": "s", "n": 40, "detail": {"median_s": 0.1}},
        {"name": f"{name}: friend's requests that failed", "value": 0, "unit": "", "n": 40, "detail": {}},
        {"name": "failures of recorders", "value": 0, "unit": "", "n": 2700, "detail": {}},
    ]
    (tmp_path / "strangers.json").write_text(json.dumps({"figures": figures}))
    found = tables.of_strangers(tmp_path)["strangers"]
    assert "| 6,000 silent | the page | 150 | 0.5 MiB | 0.2 MiB | 9 | 0.50 s | 0 of 40 |" in found
    assert "| failures of recorders | 0 of 2,700 |" in found
