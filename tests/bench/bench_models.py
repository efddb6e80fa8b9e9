"""What INT8 costs every real model of the evaluation data, and what a DLA takes of it: what `edgert models` knows.

Each model is fed as its makers' code feeds it, quantized by the default recipe (as `precision: auto` does where INT8 is
faster) on 32 images for ONNX Runtime, and scored on others beside FP32: classifiers on 125 images of ImageNet,
detectors of COCO on 64 of its validation set, others by how far they agree with FP32 on 24 photographs. Of models whose
records cannot be compared (text, images) there is the signal to noise of the outputs alone, which all have: the lowest
of any output, over four images. The figure of a model is the loss that is sure, in points: the lower end of a 95 %
paired bootstrap. Bar, with labels: 0.5, or a warning that says so; agreement is reported. A model whose outputs
have half as much noise as signal (3 dB), without a warning, has collapsed silently; the bar is none.

--exports adds the ONNX files of a folder, of random weights as well, fed as edgert infers it and calibrated on 16
images, for their signal to noise; no bar but that of the collapse. The share of a DLA is of the multiply-adds after all
rewrites, INT8, by the rules for Xavier and Orin that the planner asks. --keep writes the facts for `edgert models` and
docs/models.md; EDGERT_BENCH_MODELS picks models, whose facts then replace those that are there.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import report
import yaml
from check_models import OTHERS, RECIPES
from zoo import COCO_CALIB, COCO_VAL, IMAGENET as IMAGENET_IMAGES, NEEDED, chosen, model_path, some

from dla import USUAL_RELEASE, Target
from edgert.benchmark.measure import Figure
from edgert.config import ModelConfig
from edgert.config.model_section import value_of, verb_of
from edgert.dataset import FileDataset, LabeledDataset, open_dataset, open_images
from edgert.dataset.labels import GroundTruthClasses
from edgert.engine import default_profile
from edgert.errors import EdgertError
from edgert.evaluation import evaluate, open_evaluation
from edgert.evaluation.compare import compare
from edgert.graph import Model, load, outputs, read
from edgert.graph.dla_rewrites.apply import fit_model, prepare_for_dla
from edgert.placement.dla_share import survey
from edgert.quantization.calibrated import calibrate_section
from edgert.quantization.evaluator import is_compared
from edgert.quantization.int8_model import QuantizationResult, quantize_section
from edgert.wiring.inferred import infer

CALIBRATED, EXPORTED, LABELED, AGREED = 32, 16, 125, 24
BAR, COLLAPSED_DB = 0.5, 3.0
LABELED_BY = ("map", "top1")
MODELS = {**RECIPES, **OTHERS}
FAMILY = {
    "squeezenet_fp32": "Caffe and Caffe2 model zoo",
    "mobilenet_v1_025_224": "Keras and TensorFlow-Slim classifiers",
    "mobilenet_v2_quant": "torchvision and timm classifiers",
    "yolox_nano_416": "YOLOX",
    "nanodet_m_320": "NanoDet",
    "fastestdet": "FastestDet",
    "ultraface_rfb_320": "Ultra-Light-Fast-Generic-Face-Detector",
    "deeplab_v3_mnv2_05": "DeepLab by TensorFlow",
    "ppocr_mobile_v2_det_ch": "PaddleOCR, text detection",
    "ppocr_en_number_rec": "PaddleOCR, text recognition",
    "osnet_x0_25_msmt17": "Torchreid (OSNet)",
    "yunet_120x160": "YuNet",
}
"""Model → its row of configs/families.yaml; the others have none."""


def section(name: str) -> ModelConfig:
    task, image, _ = MODELS[name]
    written = yaml.safe_load(f"task: {{{task}}}\ninput: {{{image}}}\nbackend: ort")
    written["calibrate"] = {"images": str(COCO_CALIB), "early_stop": False}
    return ModelConfig.model_validate({"onnx": model_path(name), **written})


def images_of(name: str) -> tuple[FileDataset, LabeledDataset]:
    """What to calibrate on, and what to score on: no image is in both."""
    config = section(name)
    if MODELS[name][2] == "imagenet":
        whole = open_dataset(f"{IMAGENET_IMAGES}_labels.csv", config.task)
        assert isinstance(whole.images, FileDataset)
        assert isinstance(whole.ground_truth, GroundTruthClasses)
        truth = GroundTruthClasses(whole.ground_truth.classes[:LABELED])
        part = LabeledDataset(whole.path, some(whole.images, 0, LABELED), truth)
        return some(whole.images, LABELED, CALIBRATED), part
    photos, others = open_images(COCO_CALIB), open_images(COCO_VAL.with_suffix(""))
    assert isinstance(photos, FileDataset) and isinstance(others, FileDataset)
    if name in ("yolox_nano_416", "nanodet_m_320", "fastestdet"):
        return some(photos, 0, CALIBRATED), open_dataset(COCO_VAL, config.task)
    return some(photos, 0, CALIBRATED), LabeledDataset(COCO_VAL, some(others, 0, AGREED))


def loss(config: ModelConfig, made: QuantizationResult, scored: LabeledDataset) -> dict[str, Any]:
    """Of INT8 against FP32, in points, with its 95 % interval."""
    setup = open_evaluation(made.prepared, config, scored, labels=())
    before = evaluate(made.prepared, setup, name="fp32")
    assert before is not None
    after = evaluate(made.model, setup, name="int8", reference=before)
    assert after is not None
    metric = next((name for name in LABELED_BY if name in after.values), None)
    found = compare(before, after, metric)
    points = {"fp32": found.reference, "int8": found.other, "loss": 100 * found.drop}
    interval = {"low": 100 * found.low, "high": 100 * found.high}
    return {"metric": found.metric, "images": found.images, **points, **interval}


def signal_db(made: QuantizationResult) -> float:
    known = [made.sqnr_db[spec.name] for spec in outputs(made.model) if spec.name in made.sqnr_db]
    return min(known, default=float("nan"))


def on_dla(model: Model, config: ModelConfig) -> dict[str, dict[str, float]]:
    """Generation → share of the multiply-adds after the rewrites, and segments that have any."""
    after, _ = fit_model(prepare_for_dla(model, dict(default_profile(model, config)["default"])))
    found = {}
    for generation in (1, 2):
        one = survey(read(after), Target(generation, USUAL_RELEASE[generation], "int8"))
        segments = sum(1 for region in one.regions if region.macs)
        found[str(generation)] = {"share": round(one.summary.macs_yes, 4), "segments": segments}
    return found


def facts(name: str, config: ModelConfig, photos: FileDataset, scored: LabeledDataset | None) -> dict[str, Any]:
    """All about one model; ``refused`` says why INT8 was not made."""
    known: dict[str, Any] = {"model": name, "task": f"{verb_of(config.task)}: {value_of(config.task)}"}
    try:
        made = quantize_section(config, calibrate_section(config, target="ort", images=photos))
        known |= {"signal_db": signal_db(made), "kept": len(made.kept), "warnings": list(made.warnings)}
        known["layers"] = len(made.quantized.scheme.units) + len(made.kept)
        if scored is not None and is_compared(config.task):
            known |= loss(config, made, scored)
    except EdgertError as error:
        known["refused"] = about_it(error.what, config)
    try:
        known["dla"] = on_dla(load(config.onnx), config)
    except EdgertError as error:
        known["dla_refused"] = about_it(error.what, config)
    return known


def about_it(what: str, config: ModelConfig) -> str:
    """An error without the path of the model's file."""
    return what.replace(f"'{config.onnx}'", "it").replace(str(config.onnx), "it").removeprefix("model ")


def figures(name: str, known: dict[str, Any]) -> Iterator[Figure]:
    plain = {key: value for key, value in known.items() if not isinstance(value, (dict, list))}
    plain |= {f"dla{generation}": one["share"] for generation, one in known.get("dla", {}).items()}
    if "refused" in known:
        print(f"       {name}: {known['refused']}")
        return
    reported = bool(known["warnings"]) or known["kept"] > 0
    if "loss" in known:
        bar = BAR if known["metric"] in LABELED_BY and not known["warnings"] else None
        yield Figure(f"{name}: {known['metric']} surely lost by INT8", known["low"], "points", bar,
                     n=known["images"], detail=plain)  # fmt: skip
    signal = known["signal_db"]
    bar = None if reported or not np.isfinite(signal) else COLLAPSED_DB
    yield Figure(f"{name}: signal to noise of its outputs", signal, "dB", bar, "higher", n=4, detail=plain)


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    report.needs(*NEEDED)
    found = {}
    for name in chosen(tuple(MODELS)):
        found[name] = facts(name, section(name), *images_of(name)) | {"family": FAMILY.get(name, "")}
        yield from figures(name, found[name])
        keep(arguments.keep, found)
    photos = open_images(COCO_CALIB)
    assert isinstance(photos, FileDataset)
    exports = sorted(arguments.exports.glob("*.onnx")) if arguments.exports else []
    names = chosen([path.stem for path in exports])
    for path in (path for path in exports if path.stem in names):
        made = infer(path)
        sections = {"task": made.setting.task, "input": made.setting.input, "backend": "ort"}
        config = ModelConfig.model_validate({"onnx": path.absolute(), **sections})
        more = facts(path.stem, config, some(photos, 0, EXPORTED), None)
        yield from figures(path.stem, more)
        if arguments.random:
            more = {key: more[key] for key in ("task", "dla") if key in more}
        found[path.stem] = more | {"family": made.prior.family.name if made.prior.family else ""}
        keep(arguments.keep, found)


def keep(path: Path | None, found: dict[str, dict[str, Any]]) -> None:
    if path is None:
        return
    held = json.loads(path.read_text()) if path.exists() else {}
    held |= {
        name: _rounded({key: value for key, value in one.items() if key != "model"}) for name, one in found.items()
    }
    path.write_text(json.dumps(dict(sorted(held.items())), indent=1, allow_nan=False) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return (round(value, 4) if np.isfinite(value) else None) if isinstance(value, float) else value


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", type=Path, help="write the facts for `edgert models` here")
    parser.add_argument("--exports", type=Path, help="a folder of further ONNX files")
    parser.add_argument("--random", action="store_true", help="their weights are random: what INT8 costs is not kept")


if __name__ == "__main__":
    report.main("INT8 and DLA of real models", measure, _options)
