"""docs/extending.md as its reader would follow it: its package is installed, its pipeline is run."""

import csv
import os
import subprocess
import sys
from pathlib import Path

from edgert.installation import demo_images
from tests.helpers.command import ROOT, edgert, environment
from tests.helpers.documents import blocks
from tests.helpers.package import install

PAGE = "docs/extending.md"


def site(folder: Path) -> dict[str, str]:
    folder.mkdir()
    codes = [piece.text for piece in blocks("python") if piece.place.startswith(PAGE)]
    groups = {
        "edgert_csv": {"edgert.sinks": {"csv": "edgert_csv:Csv"}},
        "edgert_centers": {"edgert.decoders": {"detect.centers": "edgert_centers:Centers"}},
    }
    for code in codes:
        name = code.split("\n", 1)[0].removeprefix("# ").removesuffix(".py")
        if name in groups:
            install(folder, name, code, groups[name])
        else:
            (folder / f"{name}.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def test_a_pipeline_runs_with_kinds_of_another_package(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        f"models:\n  parts:\n    onnx: {ROOT}/pipelines/assets/parts.onnx\n"
        "    task: {detect: centers, score: 0.4, options: {size: 24}}\n"
        "    input: {color: rgb, std: 255}\n"
        f"stages:\n  belt: {{source: '{demo_images()}', size: 640x480, seed: 7, limit: 20}}\n"
        "  find: {infer: parts, from: belt}\n  out: {sink: csv, from: find, path: out/boxes.csv, delimiter: ;}\n"
    )
    done = edgert("run", "p.yaml", cwd=tmp_path, env=site(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out/boxes.csv").open(newline="") as file:
        rows = list(csv.reader(file, delimiter=";"))
    assert len(rows) >= 20 and all(len(row) == 6 and 0.4 <= float(row[1]) <= 1 for row in rows)
    sides = [round(float(row[4]) - float(row[2])) for row in rows]  # 24 network pixels; less at the frame's edges
    assert max(sides) == 48 and sides.count(48) > len(sides) / 2


def test_images_of_the_readers_own_code_run(tmp_path: Path) -> None:
    site(tmp_path / "site")
    (tmp_path / "site" / "p.yaml").write_text(
        "stages:\n  cam: {source: 'python:my_images:images', size: 64x48, fps: 30, limit: 100}\n"
        "  out: {sink: jsonl, from: cam, path: out.jsonl}\n"
    )
    done = edgert("run", "site/p.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 100


def test_its_kinds_pass_the_suites_as_the_page_says(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    env = environment(site(folder))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("FAILED")] == []
