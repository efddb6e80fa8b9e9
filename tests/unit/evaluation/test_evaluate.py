"""Evaluating: every image once, whatever the threads, and what goes wrong is told with its image."""

import threading
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.config import ModelConfig
from edgert.dataset import LabeledDataset, open_dataset
from edgert.engine import build_engine
from edgert.errors import BuildError, ConfigError, ModelError
from edgert.evaluation import Accuracy, EvaluationSetup, evaluate, evaluate_versions, open_evaluation
from edgert.evaluation.score import BoxScorer
from edgert.graph import Model
from tests.helpers import models
from tests.helpers.models import make, node

COUNT = 12


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images of one bright channel each, in folders of that channel's number."""
    random = np.random.default_rng(0)
    for number in range(COUNT):
        image = random.integers(0, 60, (8, 8, 3), np.uint8)
        image[..., number % 3] += 150
        path = tmp_path / "photos" / str(number % 3) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), image)
    return tmp_path / "photos"


def config(task: Mapping[str, object] | None = None) -> ModelConfig:
    data = {"onnx": "net.onnx", "task": task or {"classify": "logits"}, "input": {"color": "bgr", "std": 255}}
    return ModelConfig.model_validate(data)


def channel_means() -> Model:
    """``means`` [1, 3] = the mean of every channel of ``x`` [1, 3, 8, 8]: its best class is the brightest channel."""
    nodes = [
        node("GlobalAveragePool", ["x"], ["pooled"]),
        node("Flatten", ["pooled"], ["means"]),
    ]
    return make(nodes, {"x": models.IMAGE}, {"means": (1, 3)})


MEANS = channel_means()


def setup(photos: Path, task: Mapping[str, object] | None = None) -> EvaluationSetup:
    section = config(task)
    return open_evaluation(MEANS, section, open_dataset(photos, section.task))


def done(result: Accuracy | None) -> Accuracy:
    assert result is not None
    return result


def test_a_model_an_engine_and_a_function_give_the_same(photos: Path) -> None:
    one = setup(photos)
    engine = build_engine(MEANS, one.config, threads=1)
    results = [done(evaluate(candidate, one)) for candidate in (MEANS, engine, Function(MEANS))]
    assert [result.values for result in results] == [{"top1": 1.0, "top5": 1.0}] * 3
    assert results[0].images == COUNT and results[0].images_per_s > 0 and results[0].run_ms > 0
    assert results[0].to_json()["values"] == {"top1": 1.0, "top5": 1.0}


def test_the_result_does_not_depend_on_threads(photos: Path) -> None:
    one = setup(photos)
    notes = [done(evaluate(worse, one, threads=threads)).notes for threads in (1, 3)]
    assert notes[0] == notes[1]


def worse(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """Takes channel 2 for channel 0."""
    (image,) = feeds.values()
    means = image.mean(axis=(2, 3))
    means[:, 0] = np.maximum(means[:, 0], means[:, 2] + 0.01)
    return {"means": means.astype(np.float32)}


def test_versions_side_by_side(photos: Path) -> None:
    progress: list[tuple[str, int, int]] = []
    candidates = {"fp32": MEANS, "worse": worse}
    found = evaluate_versions(candidates, setup(photos), max_drop=0.1, progress=lambda *one: progress.append(one))
    assert found is not None and found.metric == "top1"
    assert found.comparisons[0].drop == pytest.approx(1 / 3) and not found.within
    assert progress == [(name, n + 1, COUNT) for name in candidates for n in range(COUNT)]
    assert found.to_json()["comparisons"][0]["name"] == "worse"


def test_versions_that_were_done_when_it_was_stopped_count(photos: Path) -> None:
    stop = threading.Event()

    def progress(name: str, done: int, total: int) -> None:
        if name == "worse" and done == 2:
            stop.set()

    one = setup(photos)
    candidates = {"fp32": MEANS, "worse": worse}
    found = evaluate_versions(candidates, one, threads=1, progress=progress, stop=stop)
    assert found is not None and [result.name for result in found.results] == ["fp32"]
    assert found.results[0].values["top1"] == 1.0 and found.comparisons == ()
    assert evaluate_versions(candidates, one, stop=stop) is None


def test_a_reference_alone_tells_nothing_without_labels(photos: Path) -> None:
    stop, section = threading.Event(), config()
    one = open_evaluation(MEANS, section, open_dataset(f"{photos}/*/*.png", section.task))
    set_at_second = {"worse": stop.set, "fp32": lambda: None}
    found = evaluate_versions(
        {"fp32": MEANS, "worse": worse}, one, progress=lambda name, done, total: set_at_second[name](), stop=stop
    )
    assert found is None


def test_a_version_with_another_input_is_refused(photos: Path) -> None:
    renamed = make(
        [
            node("GlobalAveragePool", ["image"], ["pooled"]),
            node("Flatten", ["pooled"], ["means"]),
        ],
        {"image": models.IMAGE},
        {"means": (1, 3)},
    )
    with pytest.raises(ModelError, match="a version to compare has no input 'x'") as caught:
        evaluate_versions({"fp32": MEANS, "other": renamed}, setup(photos))
    assert "it has image" in caught.value.why and "--input" in caught.value.fix


def test_without_labels_versions_are_compared_with_each_other(photos: Path) -> None:
    section = config()
    plain = open_evaluation(MEANS, section, open_dataset(photos / "**" / "*.png", section.task))
    found = evaluate_versions({"fp32": MEANS, "worse": worse}, plain)
    assert found is not None and found.results[0].values == {}
    assert found.results[1].values["agreement"] == pytest.approx(2 / 3)
    with pytest.raises(ConfigError, match="cannot score without labels or a second model"):
        evaluate_versions({"fp32": MEANS}, plain)


def test_identities_are_found_again(photos: Path) -> None:
    found = evaluate_versions({"fp32": MEANS, "same": MEANS}, setup(photos, {"embed": "l2"}))
    assert found is not None
    assert found.results[1].values == {"retrieval": 1.0, "cosine": pytest.approx(1.0)}
    with pytest.raises(ConfigError, match="cannot score without labels or a second model"):
        evaluate_versions({"fp32": MEANS}, setup(photos, {"embed": "l2"}), "cosine")


def test_an_unknown_metric_is_refused_before_anything_runs(photos: Path) -> None:
    def never(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        raise AssertionError("ran")

    with pytest.raises(ConfigError, match="no metric 'map' here"):
        evaluate_versions({"fp32": never}, setup(photos), "map")


def test_it_can_be_stopped(photos: Path) -> None:
    stop = threading.Event()
    seen: list[int] = []

    def progress(count: int, total: int) -> None:
        seen.append(count)
        if count == 3:
            stop.set()

    assert evaluate(MEANS, setup(photos), progress=progress, stop=stop, threads=1) is None
    assert seen == [1, 2, 3]


def test_what_fails_is_told_once_with_its_image(photos: Path) -> None:
    one = setup(photos)

    def wrong(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"means": np.zeros((1, 3, 3), np.float32)}

    with pytest.raises(ModelError) as caught:
        evaluate(wrong, one)
    assert caught.value.where.endswith(".png")
    with pytest.raises(ModelError, match="has no output 'means'"):
        evaluate(lambda feeds: {"other": np.zeros(1)}, one)
    broken = photos / "0" / "0.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(ConfigError, match="1 of 12 images cannot be read"):
        evaluate(MEANS, one)


def test_a_failing_engine_and_a_task_that_does_not_fit_are_refused(photos: Path) -> None:
    with pytest.raises(BuildError):
        evaluate(models.unknown_operator(), setup(photos))
    with pytest.raises(ModelError):
        setup(photos, {"detect": "yolox"})


def test_labels_of_another_kind_are_refused(photos: Path, tmp_path: Path) -> None:
    section = config({"embed": "l2"})
    listed = tmp_path / "photos.csv"
    listed.write_text("file,label_index\n0/0.png,0\n")
    with pytest.raises(ConfigError, match="labels of classes do not fit"):
        evaluate(MEANS, open_evaluation(MEANS, section, open_dataset(listed, section.task)))
    listed.write_text("file,label_index\n0/0.png,1000\n")
    with pytest.raises(ConfigError, match="label 1000 is not a class"):
        open_evaluation(MEANS, config({"classify": "auto"}), open_dataset(listed))


def test_boxes_count_from_a_low_score_on_only_with_labels(photos: Path, tmp_path: Path) -> None:
    from edgert.evaluation.evaluate_model import LOWEST_SCORE, _evaluation_task

    task = config({"detect": "yolox", "score": 0.5, "limit": 20}).task
    judged = _evaluation_task(task, True)
    assert (judged.score, judged.limit) == (LOWEST_SCORE, 100)  # type: ignore[union-attr]
    assert _evaluation_task(task, False) == task
    assert isinstance(setup(photos).dataset, LabeledDataset) and not isinstance(setup(photos).scorer, BoxScorer)
