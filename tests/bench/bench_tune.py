"""Bar 3: `edgert build --tune` never ends slower than the default engine.

    python tests/bench/bench_tune.py [--json FILE]

Every model of the evaluation data and the demo's is built and tuned as `edgert build PIPELINE --tune` does it, for
files (a source that waits for the pipeline) in FP32; those of INT8 with `precision: auto`, calibrated on 32 images,
where FP32 and INT8 are both candidates. The one whose batch size is open is also tuned for a stage that asks for
batches. Then the default and what was chosen are compiled again, as `edgert run` compiles them, and run in turns; the
gain is the median of the pairwise ratios default / tuned. Where the default was kept they are the same engine, and the
gain is 1. The style network of the evaluation data is left out: it has an experimental operator, ImageScaler, that ONNX
has dropped, and no bundle holds it.
EDGERT_BENCH_MODELS and EDGERT_BENCH_ROUNDS try it quickly.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import report
from check_models import RECIPES
from zoo import NEEDED, ROOT, calibration_folder, chosen, model_path, rounds

from edgert.benchmark.measure import Figure, in_turn, median_ratio
from edgert.bundle.bundle import open_bundle
from edgert.compiler.build_pipeline import build
from edgert.compiler.model_steps import uniform_feeds
from edgert.compiler.unpack import tuned_model
from edgert.config import ModelConfig, load_pipeline
from edgert.graph import load
from edgert.installation import demo_images
from edgert.tuner.rounds import Candidate
from edgert.tuner.trials import Tuned

DEMO = "demo"
RECIPE = {name: (task, image) for name, (task, image, _) in RECIPES.items()} | {
    "person_reid_retail_0288": ("embed: l2", "resize: stretch, color: bgr"),
    DEMO: ("detect: yolox", "resize: letterbox"),
}
INT8 = ("squeezenet_fp32", "mobilenet_v1_025_224", DEMO)
BATCHED = ("ppocr_mobile_v2_det_ch",)
ROUNDS, FRAMES = 61, 8


def pipeline(name: str, folder: Path, int8: bool, batch: int) -> Path:
    """A pipeline file for one model."""
    task, image = RECIPE[name]
    onnx = ROOT / "pipelines/assets/parts.onnx" if name == DEMO else model_path(name)
    images = f"'{demo_images()}'" if name == DEMO else calibration_folder(name) if int8 else ""
    calibrate = f"calibrate: {{images: {images}, limit: 32, early_stop: false}}" if int8 else ""
    batching = f", batch: {{max: {batch}}}" if batch > 1 else ""
    path = folder / "tune.yaml"
    path.write_text(
        f"models:\n  net:\n    onnx: {onnx}\n    task: {{{task}}}\n    input: {{{image}}}\n    {calibrate}\n"
        f"stages:\n  camera: {{source: api}}\n  see: {{infer: net, from: camera{batching}}}\n"
        '  out: {sink: "null", from: see}\n'
    )
    return path


def gain(name: str, int8: bool = False, batch: int = 1) -> Figure:
    """Builds, tunes and compares."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        file = load_pipeline(pipeline(name, folder, int8, batch))
        built = build(file, folder / "net.edgert", board="host", tune=True, cache=folder / "cache")
        with open_bundle(built.path) as bundle:
            found = tuned_model(bundle, "net")
            assert found is not None
            forms = bundle.manifest.models["net"].forms
            bundle.extract(folder, forms.values())
        paths = {form: folder / path for form, path in forms.items()}
        default_ms, tuned_ms = raced(found, paths, file.config.models["net"])
    ran = [trial for trial in found.tried if trial.frame is not None]
    detail = {
        "default": str(found.default),
        "tuned": str(found.chosen),
        "default_ms": statistics.median(default_ms),
        "tuned_ms": statistics.median(tuned_ms),
        "gain_in_search": found.gain,
        "turns_in_search": found.runs,
        "tactics": len(ran),
        "seconds": built.seconds,
    }
    is_kept = found.chosen == found.default
    ratio = 1.0 if is_kept else median_ratio(default_ms, tuned_ms)
    kind = ", auto" if int8 else f", batches of {batch}" if batch > 1 else ""
    title = f"{name}{kind}: default / tuned, {found.chosen}"
    return Figure(title, ratio, "×", 1.0, "higher", len(default_ms), detail)


def raced(found: Tuned, paths: Mapping[str, Path], config: ModelConfig) -> list[list[float]]:
    """Milliseconds per frame of the default and of what was chosen, in turns, both compiled afresh."""
    default, best = load(paths[found.default.form]), load(paths[found.chosen.form])
    feed = next(uniform_feeds(default, config, 1))
    with (
        Candidate(found.default, default, config, feed) as one,
        Candidate(found.chosen, best, config, feed) as other,
    ):
        in_turn(3, lambda: one.frame_ms(FRAMES), lambda: other.frame_ms(FRAMES))
        return in_turn(rounds(ROUNDS), lambda: one.frame_ms(FRAMES), lambda: other.frame_ms(FRAMES))


def measure() -> Iterator[Figure]:
    """Every model."""
    report.needs(*NEEDED)
    for name in chosen(tuple(RECIPE)):
        yield gain(name)
    for name in chosen(INT8):
        yield gain(name, int8=True)
    for name in chosen(BATCHED):
        yield gain(name, batch=2)


if __name__ == "__main__":
    report.main("Bar 3: tuned engines are never slower than the default", measure)
