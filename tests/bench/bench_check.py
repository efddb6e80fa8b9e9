"""How often ``edgert check`` is right: every model of the evaluation data whose preprocessing is documented.

    python -m tests.bench.bench_check [--json FILE] [--photos 8] [--trials 8] [--models yolox_nano_416,...]

Each trial draws photos at random and asks twice: of a pipeline file wired as documented, and of one wired with
the defaults (letterbox, RGB, 0-255). Counted per model, with 1 photo and with several:

* first: of all colors, scales and decoders, placed as documented, the documented ones have the most evidence (a
  scale within 1 % of the documented one counts as it)
* placed: of all settings, the documented one has the most evidence, its placement included
* kept: the documented file is called fine (first, or tied with the first)
* blamed: the documented file is called wrong, which it is not
* repaired: starting from the defaults, the advised color and scale are the documented ones, or give practically the
  same answers, or the photos are said not to tell them apart
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from edgert.config import load_pipeline
from edgert.wiring.check import check
from edgert.wiring.check_report import CheckReport, Row

DATA = Path(os.environ.get("EDGERT_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
CROP = "resize: center_crop, crop: 0.875"
RECIPES = {
    "squeezenet_fp32": ("classify: auto", f"{CROP}, color: bgr, mean: [104, 117, 123], std: 1", "imagenet"),
    "mobilenet_v1_025_224": ("classify: auto", f"{CROP}, color: rgb, mean: 127.5, std: 127.5", "imagenet"),
    "mobilenet_v2_quant": (
        "classify: auto",
        f"{CROP}, color: rgb, mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]",
        "imagenet",
    ),
    "yolox_nano_416": ("detect: yolox", "resize: letterbox, anchor: top_left, color: bgr", "coco"),
    "nanodet_m_320": (
        "detect: nanodet",
        "resize: letterbox, pad: 0, color: bgr, mean: [103.53, 116.28, 123.675], std: [57.375, 57.12, 58.395]",
        "coco",
    ),
    "fastestdet": ("detect: fastestdet", "resize: stretch, interpolation: area, color: bgr, std: 255", "coco"),
    "ultraface_rfb_320": ("detect: ssd", "resize: stretch, color: rgb, mean: 127, std: 128", "people"),
    "deeplab_v3_mnv2_05": ("segment: argmax", "resize: stretch, color: rgb, mean: 127.5, std: 127.5", "people"),
    "ppocr_mobile_v2_det_ch": (
        "segment: threshold",
        "size: 320x320, resize: stretch, color: rgb, mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]",
        "coco",
    ),
}
SHARES = ("first", "placed", "kept", "blamed", "unclear", "repaired")
_TALL = 0.6  # of the image's height: a person whose face a face detector can find


def pipeline_text(model: str, task: str, recipe: str) -> str:
    """A pipeline file for one model."""
    onnx = DATA / "models" / f"{model}.onnx"
    return (
        f"models:\n  net:\n    onnx: {onnx}\n    task: {{{task}}}\n    input: {{{recipe}}}\n"
        'stages:\n  camera: {source: api}\n  see: {infer: net, from: camera}\n  out: {sink: "null", from: see}\n'
    )


def images(kind: str) -> list[Path]:
    """Photos that show what a model knows."""
    if kind == "imagenet":
        return sorted((DATA / "images" / "imagenet").iterdir())
    if kind == "coco":
        return sorted((DATA / "images" / "coco_val").iterdir()) + sorted((DATA / "images" / "coco_calib").iterdir())
    found = set()
    for name in ("coco_val", "coco_calib"):
        data = json.loads((DATA / "images" / f"{name}.json").read_text())
        images = {image["id"]: image for image in data["images"]}
        for box in data["annotations"]:
            image = images[box["image_id"]]
            if box["category_id"] == 0 and box["bbox"][3] > _TALL * image["height"]:
                found.add(DATA / "images" / name / image["file_name"])
    return sorted(found)


def run_check(text: str, photos: list[Path], folder: Path) -> CheckReport:
    """One check of a pipeline file of that text."""
    path = folder / "pipeline.yaml"
    path.write_text(text)
    return check(load_pipeline(path), photos)


def repaired(report: CheckReport, documented: CheckReport) -> bool:
    """Whether the advice from a wrong start is as good as the documented setting."""
    want, got = documented.written.input, report.best.input
    same = all(getattr(want, key) == getattr(got, key) for key in ("color", "mean", "std"))
    rows = [row for row in documented.rows if row.setting["input"].get("color") == got.color]
    scales = {"mean": _short(got.mean), "std": _short(got.std)}
    close = any(all(row.setting["input"][k] == v for k, v in scales.items()) and row.behind < 2 for row in rows)
    return same or close


def _first_as_placed(report: CheckReport) -> Row:
    keys = ("resize", "anchor", "pad", "crop")
    own = next(row.setting["input"] for row in report.rows if row.written)
    return next(row for row in report.rows if all(row.setting["input"].get(key) == own.get(key) for key in keys))


def _is_documented(row: Row, report: CheckReport) -> bool:
    """Whether a setting is the documented one, or makes values within 1 % of its range of it (127/128 for 127.5)."""
    own = next(row for row in report.rows if row.written)
    if (row.names["color"], row.names["task"]) != (own.names["color"], own.names["task"]):
        return False
    ends = []
    for setting in (row.setting["input"], own.setting["input"]):
        mean, std = (np.broadcast_to(np.asarray(setting[key], float), 3) for key in ("mean", "std"))
        ends.append(np.stack([(0 - mean) / std, (255 - mean) / std]))
    return bool(np.abs(ends[0] - ends[1]).max() <= 0.01 * np.ptp(ends[1], axis=0).max())


def _short(value: tuple[float, ...]) -> Any:
    return value[0] if len(value) == 1 else [round(item, 6) for item in value]


def measure(model: str, count: int, trials: int, folder: Path) -> dict[str, Any]:
    """Shares of trials, see the module."""
    task, recipe, kind = RECIPES[model]
    pool, rng = images(kind), np.random.default_rng(count)
    shares = dict.fromkeys(SHARES, 0.0)
    runs, started, mistaken = 0, time.perf_counter(), []
    for _ in range(trials):
        photos = [pool[n] for n in rng.choice(len(pool), count, replace=False)]
        right = run_check(pipeline_text(model, task, recipe), photos, folder)
        size = next((part for part in recipe.split(", ") if part.startswith("size")), "")
        wrong = run_check(pipeline_text(model, task, size), photos, folder)
        shares["first"] += _is_documented(_first_as_placed(right), right) / trials
        shares["placed"] += right.rows[0].written / trials
        shares["kept"] += (right.verdict != "wrong") / trials
        shares["unclear"] += (right.verdict == "unclear") / trials
        shares["blamed"] += (right.verdict == "wrong") / trials
        shares["repaired"] += repaired(wrong, right) / trials
        runs += right.runs
        if right.verdict == "wrong":
            mistaken.append([str(item) for item in right.findings])
    seconds = (time.perf_counter() - started) / trials / 2
    return {**shares, "runs": runs / trials, "seconds": seconds, "mistaken": mistaken}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--photos", type=int, default=8)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--models", default=",".join(RECIPES))
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"no evaluation data at {DATA}; set EDGERT_DATA")
    results: dict[str, Any] = {}
    print(f"{'model':<24}{'photos':>7}{''.join(f'{name:>9}' for name in SHARES)}{'runs':>6}{'s':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models.split(","):
            for count in sorted({1, options.photos}):
                row = results.setdefault(model, {})[count] = measure(model, count, options.trials, Path(folder))
                shares = "".join(f"{row[name]:>9.2f}" for name in SHARES)
                print(f"{model:<24}{count:>7}{shares}{row['runs']:>6.0f}{row['seconds']:>6.1f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
