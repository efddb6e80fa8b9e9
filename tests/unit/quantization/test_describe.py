"""A quantized model as a report."""

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from edgert.config import AccuracyConfig, CalibrateConfig, ClassifyTask, InputConfig, ModelConfig
from edgert.config.model_section import QuantizeConfig
from edgert.evaluation import EvaluationResult, compare, evaluate_model, score
from edgert.graph import read, to_bytes
from edgert.quantization.calibrated import CalibratedModel, calibrate_section
from edgert.quantization.calibration.threshold import METHODS
from edgert.quantization.describe import accuracy_rows, describe, summary
from edgert.quantization.int8_model import QuantizationResult, quantize_section
from edgert.quantization.recovery import MixedPrecision
from tests.unit.quantization.network import IMAGES, network, random_images

LAYERS = ("first", "second", "third", "last")


def section(file: Path, **quantize: object) -> ModelConfig:
    return ModelConfig(
        onnx=file,
        task=ClassifyTask(classify="softmax"),
        input=InputConfig(resize="stretch", std=(64.0,)),
        calibrate=CalibrateConfig(images="photos", limit=IMAGES, early_stop=False),  # type: ignore[arg-type]
        quantize=QuantizeConfig.model_validate(quantize),
    )


@cache
def calibrated(file: Path, equalize: bool) -> CalibratedModel:
    return calibrate_section(section(file, equalize=equalize), images=random_images(IMAGES, 5))


def outcome(config: ModelConfig, *, by_task: bool = False) -> QuantizationResult:
    return quantize_section(config, calibrated(config.onnx, config.quantize.equalize), by_task=by_task)


def test_layers_in_graph_order(file: Path) -> None:
    made = outcome(section(file, keep=["third"]))
    report = describe(made, section(file, keep=["third"]))
    assert [row.name for row in report.layers] == [*LAYERS]
    assert [row.op for row in report.layers] == ["Conv", "Conv", "Conv", "Gemm"]
    third = report.layers[2]
    assert (third.precision, third.reason, third.cost) == ("FP32", "asked for", None)
    assert report.layers[1].precision == "INT8" and report.layers[1].reason == ""
    tensors = {node.name: node.outputs[0] for node in read(made.prepared).nodes}
    for row in report.layers:
        assert row.sqnr_db == made.sqnr_db.get(tensors[row.name])
    second = report.layers[1].sqnr_db
    assert second is not None and second > 10
    assert report.cost_meaning == ""


def test_the_terminal_counts_the_layers_of_the_report(file: Path) -> None:
    made = outcome(section(file, keep=["third"]))
    precisions = [row.precision for row in describe(made, section(file, keep=["third"])).layers]
    counts = precisions.count("INT8"), len(precisions), precisions.count("FP32")
    assert summary(made)[0] == "INT8: {} of {} layers; {} in FP32".format(*counts)
    assert counts[0] + counts[2] == counts[1] == 4


def test_a_convolution_that_ends_the_graph_multiplies_floats(tmp_path: Path) -> None:
    path = tmp_path / "ends.onnx"
    path.write_bytes(to_bytes(network(pooled=False)))
    report = describe(outcome(section(path)), section(path))
    assert [row.precision for row in report.layers[1:]] == ["INT8", "FP32"]
    assert "nothing rounds its output" in report.layers[2].reason


def test_floating_nodes_are_explained(file: Path) -> None:
    report = describe(outcome(section(file)), section(file))
    texts = [note.text for note in report.notes if note.level == "note"]
    assert any("Softmax" in text and "stay" in text for text in texts)
    assert not [note for note in report.notes if note.level == "warning"]


def test_costs_come_from_the_scan(file: Path) -> None:
    ranked = {"second": 0.3, "last": None, "third": 0.0}
    found = MixedPrecision(("second",), 0.9, True, {}, False, "0.9 reaches 0.8; time ran out")
    made = replace(outcome(section(file)), scan=ranked, search=found)
    report = describe(made, section(file))
    assert {row.name: row.cost for row in report.layers} == {"first": None, "second": 0.3, "third": 0.0, "last": None}
    assert report.cost_meaning
    warnings = [note.text for note in report.notes if note.level == "warning"]
    assert warnings[0] == "0.9 reaches 0.8; time ran out."
    assert "cost of 1 of 3 layers" in warnings[1]


def test_tensors_are_those_whose_range_is_needed(file: Path) -> None:
    made = outcome(section(file))
    report = describe(made, section(file))
    plan = made.quantized.scheme
    assert sorted(row.name for row in report.tensors) == sorted(plan.needed)
    order = [name for name in plan.points if name in plan.needed]
    assert [row.name for row in report.tensors] == order
    for row in report.tensors:
        histogram = made.table.histograms[row.name]
        assert row.counts.sum() == histogram.values and row.amax == histogram.amax
        assert tuple(row.thresholds) == METHODS and row.thresholds["minmax"] == pytest.approx(histogram.amax)
        assert row.chosen == "mse"
        group = next(group for group in plan.groups.values() if row.name in group)
        assert row.threshold == made.table.amax(group)
        assert {row.name, *row.shared} == set(group)


def test_a_method_of_its_own_is_reported(file: Path) -> None:
    made = outcome(section(file))
    name = made.quantized.scheme.needed[0]
    chosen = replace(made, table=made.table.with_chosen({name: "entropy"}))
    report = describe(chosen, section(file))
    row = next(row for row in report.tensors if row.name == name)
    assert row.chosen == "entropy"
    assert report.provenance.method == "auto: entropy, mse"


def test_provenance_sizes_and_settings(file: Path) -> None:
    config = section(file, keep=["third"])
    made = outcome(config)
    report = describe(made, config, command="edgert quantize", source="a belt")
    origin = report.provenance
    assert (origin.model, origin.digest) == ("net.onnx", hashlib.sha256(file.read_bytes()).hexdigest())
    assert (origin.images, origin.source, origin.method, origin.command) == (
        IMAGES, "a belt", "mse", "edgert quantize",
    )  # fmt: skip
    assert {"edgert", "onnx", "onnxruntime", "numpy"} <= set(origin.versions) and "core" in origin.machine
    assert report.sizes_bytes == {"FP32": file.stat().st_size, "INT8": len(to_bytes(made.model))}
    assert report.settings["calibrate.limit"] == str(IMAGES) and report.settings["quantize.keep"] == "[third]"
    assert "quantize.adaround" not in report.settings
    assert describe(made, config).provenance.source.endswith("photos")
    assert report.target == "ONNX Runtime"


def test_the_key_adaround_rounds_the_named_layer_in_another_way(file: Path) -> None:
    nearest, turned = (
        read(outcome(section(file, correct_bias=False, adaround=names)).model).constants for names in ([], ["second"])
    )
    stored = [name for name, values in nearest.items() if values.dtype == np.int8]
    (changed,) = (name for name in stored if not np.array_equal(nearest[name], turned[name]))
    assert 0 < np.mean(nearest[changed] != turned[changed]) < 0.5


def test_without_a_judge_accuracy_is_absent_with_its_reason(file: Path) -> None:
    report = describe(outcome(section(file)), section(file))
    assert report.accuracy == () and report.absent["accuracy"] == "Accuracy was not measured."


def test_agreement_without_labels(file: Path) -> None:
    report = describe(outcome(section(file), by_task=True), section(file))
    (row,) = report.accuracy
    assert (row.metric, row.fp32, row.labeled, row.images) == ("agreement", 1.0, False, IMAGES)
    assert row.max_drop is None and row.interval is not None and row.interval[0] <= row.drop <= row.interval[1]


def test_a_loss_of_more_than_half_a_point_ends_the_lines(file: Path) -> None:
    made = outcome(section(file), by_task=True)
    assert made.evaluation is not None
    (drop,) = made.evaluation.comparisons
    lines = {}
    for loss in (0.004, 0.011):
        evaluation = replace(made.evaluation, comparisons=(replace(drop, metric="map", drop=loss),))
        lines[loss] = summary(replace(made, evaluation=evaluation))
    assert not any("INT8 loses" in line for line in lines[0.004])
    noise = {row.name: row.sqnr_db for row in describe(made, section(file)).layers if row.precision == "INT8"}
    worst = sorted(noise, key=lambda name: noise[name] or 0)[:3]
    assert lines[0.011][-2] == f"INT8 loses 1.1 points of mAP50-95; these layers cost most: {', '.join(worst)}"
    assert lines[0.011][-1].startswith(f"to keep them in FP32: --keep {worst[0]} --keep ")
    assert f'quantize: {{keep: ["{worst[0]}", ' in lines[0.011][-1]


def result(name: str, right: int) -> evaluate_model.Accuracy:
    right_ones = [float(n < right) for n in range(20)]
    scores = {"top1": score.mean_of(right_ones), "rmse": score.mean_of([1 - one for one in right_ones])}
    values = {metric: one.value for metric, one in scores.items()}
    return evaluate_model.Accuracy(name, 20, values, scores, 1.0, 1.0, 1, ())


def test_every_metric_is_a_row_and_the_budget_stands_by_its_own() -> None:
    before, after, other = result("net", 15), result("int8", 14), result("dla", 10)
    drops = tuple(compare(before, one, "top1", max_drop=0.1) for one in (after, other))
    rows = accuracy_rows(EvaluationResult("top1", (before, after, other), drops), True, {"int8": "INT8", "dla": "DLA"})
    assert [(row.metric, row.precision, row.max_drop) for row in rows] == [
        ("top-1", "INT8", 0.1), ("rmse", "INT8", None), ("top-1", "DLA", 0.1), ("rmse", "DLA", None),
    ]  # fmt: skip
    assert rows[0].drop == pytest.approx(0.05) and rows[0].kept and rows[2].kept is False
    assert rows[1].drop == pytest.approx(0.05) and rows[1].interval == rows[0].interval and rows[1].unit == "plain"


def test_the_budget_of_the_section(file: Path, tmp_path: Path) -> None:
    made = outcome(section(file), by_task=True)
    assert made.evaluation is not None
    (drop,) = made.evaluation.comparisons
    budget = replace(drop, max_drop=0.2)
    labeled = replace(made, evaluation=replace(made.evaluation, comparisons=(budget,)), labeled=True)
    accuracy = AccuracyConfig(dataset=tmp_path, metric="top1", max_drop=0.2)
    report = describe(labeled, section(file).model_copy(update={"accuracy": accuracy}))
    assert report.accuracy[0].max_drop == 0.2 and report.accuracy[0].labeled
    assert report.settings["accuracy.max_drop"] == "0.2"
