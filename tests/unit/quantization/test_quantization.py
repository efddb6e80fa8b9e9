"""A section's model made INT8, evaluated, and its accuracy recovered where it has to be."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.config import EmbedTask, ModelConfig
from edgert.evaluation import evaluate_model
from edgert.graph import read
from edgert.quantization import evaluator, int8_model, quantizer, run
from edgert.quantization.calibrated import CalibratedModel, calibrate_section
from edgert.quantization.describe import describe, summary
from edgert.quantization.evaluator import NoiseEvaluator, TaskEvaluator, evaluator_of
from edgert.quantization.int8_model import QuantizationResult, quantize_section, round_only_model
from edgert.stages.kinds import ByteTrackStage
from tests.unit.quantization.network import IMAGES, SIZE, random_images


@pytest.fixture
def calibrated(config: ModelConfig) -> CalibratedModel:
    return calibrate_section(config, target="ort", images=random_images(IMAGES, 5))


def demand(monkeypatch: pytest.MonkeyPatch, floor: float, goal: float) -> None:
    monkeypatch.setattr(evaluator, "SOUND", {"agreement": floor})
    monkeypatch.setattr(evaluator, "REPAIRED", {"agreement": goal})


def test_a_sound_model_is_let_alone(config: ModelConfig, calibrated: CalibratedModel) -> None:
    made = quantize_section(config, calibrated)
    assert made.is_sound and made.search is None and made.warnings == ()
    assert made.evaluation is not None and made.evaluation.metric == "agreement" and not made.labeled


def test_a_spoilt_model_keeps_layers_and_reports_it(
    config: ModelConfig, calibrated: CalibratedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(monkeypatch, 1.01, 0.0)
    logged: list[str] = []
    made = quantize_section(config, calibrated, run=run.Run(log=logged.append))
    assert made.search is None  # nothing had to be kept to get where it was to get
    demand(monkeypatch, 1.01, 1.01)
    made = quantize_section(config, calibrated, run=run.Run(log=logged.append))
    assert made.search is not None and made.scan is not None and not made.search.met and not made.is_sound
    assert any("layers that cost" in line for line in logged)
    (*_, last) = made.warnings
    assert "differs too much from FP32" in last
    assert set(made.warnings) <= set(summary(made))


def test_noise_above_the_signal_is_said_though_every_class_agrees(
    config: ModelConfig, calibrated: CalibratedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP32 names one class on all of these images."""
    monkeypatch.setattr(int8_model, "sqnr", lambda *_: {"y": -8.7})
    made = quantize_section(config, calibrated)
    assert made.evaluation is not None and made.evaluation.comparisons[0].other == 1.0 and not made.is_sound
    spoils, little = made.warnings
    assert "the noise of output 'y' is larger than its signal (-8.7 dB)" in spoils
    assert "its result is the same on all 32 images" in little
    assert set(made.warnings) <= set(summary(made))
    assert {"warning"} == {one.level for one in describe(made, config).notes if "INT8" in one.text}
    monkeypatch.setattr(int8_model, "sqnr", lambda *_: {"y": 6.0})
    made = quantize_section(config, calibrated)
    assert made.is_sound and made.warnings == (little,)


def test_a_model_between_sound_and_good_says_that_labels_are_wanted(
    config: ModelConfig, calibrated: CalibratedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(monkeypatch, 0.0, 1.01)
    made = quantize_section(config, calibrated)
    (warning,) = made.warnings
    assert made.is_sound and "from FP32 now and then (agreement" in warning and "measure it on labels" in warning


def test_kept_layers_are_named_with_what_they_cost(
    config: ModelConfig, calibrated: CalibratedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(monkeypatch, 1.01, 1.01)
    made = quantize_section(config, calibrated)
    assert made.search is not None
    kept = made.search.kept
    assert all(made.kept[name].startswith("needed for accuracy") for name in kept)
    assert bool(kept) == any(line.startswith("kept for accuracy: ") for line in summary(made))


def test_ranges_for_one_engine_are_completed_when_units_are_kept(
    config: ModelConfig, calibrated: CalibratedModel
) -> None:
    more = calibrated.measure_missing()
    assert more.keys().isdisjoint(calibrated.table.histograms)
    made = {node.outputs[0] for node in read(calibrated.model).nodes}
    assert made <= more.keys() | calibrated.table.histograms.keys()


def test_outputs_nobody_explains_are_judged_by_their_noise(config: ModelConfig, calibrated: CalibratedModel) -> None:
    vectors = config.model_copy(update={"task": EmbedTask(embed="none")})
    assert isinstance(evaluator_of(vectors, calibrated, by_task=False), NoiseEvaluator)
    assert isinstance(evaluator_of(config, calibrated), TaskEvaluator)
    made = quantize_section(vectors, calibrated, by_task=False)
    assert made.evaluation is None and made.is_sound
    by_vectors = evaluator_of(vectors, calibrated)
    assert by_vectors is not None and by_vectors.metric == "cosine" and by_vectors.floor == evaluator.SOUND["cosine"]


def test_without_images_nobody_judges(config: ModelConfig, calibrated: CalibratedModel) -> None:
    blind = CalibratedModel(calibrated.model, calibrated.table, None)
    assert evaluator_of(config, blind) is None
    made = quantize_section(config, blind)
    assert made.is_sound and made.evaluation is None and made.sqnr_db == {}


def test_the_evaluation_takes_images_that_nothing_was_corrected_over(config: ModelConfig) -> None:
    many = calibrate_section(
        config, images=random_images(evaluator.CORRECTION_IMAGES + evaluator.AGREEMENT_IMAGES + 5, 5)
    )
    found = evaluator_of(config, many)
    assert isinstance(found, TaskEvaluator) and many.feed is not None
    assert len(found.setup) == evaluator.AGREEMENT_IMAGES
    assert found.setup.feed.name(0) == many.feed.name(evaluator.CORRECTION_IMAGES)
    few = calibrate_section(config, images=random_images(40, 5))
    found = evaluator_of(config, few)
    assert isinstance(found, TaskEvaluator) and len(found.setup) == 40


def test_tracks_are_judged_as_the_pipeline_makes_them(
    config: ModelConfig, calibrated: CalibratedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}
    opened = evaluate_model.open_evaluation
    monkeypatch.setattr(evaluator, "open_evaluation", lambda *of, **keys: asked.update(keys) or opened(*of, **keys))
    stage = ByteTrackStage.model_validate({"track": "bytetrack", "from": "find", "activate": 0.9})
    assert evaluator_of(config, calibrated, run.Run(tracking=stage)) is not None
    assert asked["tracking"] is stage


@pytest.mark.parametrize(
    ("metric", "int8", "is_sound"), [("cer", 0.6, False), ("cer", 0.4, True), ("top1", 0.6, True), ("top1", 0.4, False)]
)
def test_an_error_that_grows_misses_its_budget(
    metric: str, int8: float, is_sound: bool, calibrated: CalibratedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"fp32": {metric: 0.5}, "int8": {metric: int8}}
    monkeypatch.setattr(evaluator, "open_dataset", lambda *_, **__: None)
    monkeypatch.setattr(evaluator, "open_evaluation", lambda *_, **__: None)
    monkeypatch.setattr(evaluator, "evaluate", lambda *_, name, **__: SimpleNamespace(values=values[name]))
    quantized: Any = SimpleNamespace(scheme=SimpleNamespace(target="ort"), model=calibrated.model)
    for max_drop in (0.01, 1.0):
        accuracy = {"dataset": __file__, "metric": metric, "max_drop": max_drop}
        config = ModelConfig.model_validate({"onnx": "m.onnx", "task": {"classify": "auto"}, "accuracy": accuracy})
        found = TaskEvaluator(config, calibrated, run.Run())
        assert (found.evaluate(quantized).value >= found.floor) == (is_sound or max_drop == 1)


def test_plain_rounding_is_all_integers(config: ModelConfig, calibrated: CalibratedModel) -> None:
    model = round_only_model(config, calibrated)
    feeds = {"x": np.random.default_rng(0).normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)}
    np.testing.assert_allclose(Function(model)(feeds)["y"], Function(calibrated.model)(feeds)["y"], atol=0.1)


def test_evened_out_is_the_same_function_with_ranges_of_its_own(
    config: ModelConfig, calibrated: CalibratedModel
) -> None:
    even = calibrated.smooth(quantizer.Recipe("gpu"))
    assert even is not None and even.model.digest != calibrated.model.digest
    assert even.table.model == even.model.digest
    feeds = {"x": np.random.default_rng(0).normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)}
    first, second = (Function(one.model, fused=False)(feeds)["y"] for one in (calibrated, even))
    np.testing.assert_array_equal(first, second)
    assert CalibratedModel(calibrated.model, calibrated.table, None).smooth(quantizer.Recipe("gpu")) is None


def test_evening_out_is_only_for_who_allows_it(
    config: ModelConfig, calibrated: CalibratedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(monkeypatch, 1.01, 1.01)
    whole = calibrate_section(config, images=random_images(IMAGES, 5))

    def made(**allowed: bool) -> QuantizationResult:
        return quantize_section(config, whole, target="gpu", budget_s=0, **allowed)

    assert made().prepared.digest == whole.model.digest
    logged: list[str] = []
    quantize_section(config, whole, target="gpu", smooth=True, budget_s=0, run=run.Run(log=logged.append))
    assert "smoothing activations" in logged
    logged.clear()
    quantize_section(config, calibrated, smooth=True, budget_s=0, run=run.Run(log=logged.append))
    assert "smoothing activations" not in logged  # ONNX Runtime would pay for it
