"""Scorers of several labels, texts, depth and images, each by a small example worked out by hand or by its library."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgert.config import ClassifyTask, SegmentTask
from edgert.config.model_section import DepthTask, ImageTask
from edgert.dataset import labels, open_dataset
from edgert.errors import ConfigError
from edgert.evaluation.task_scores import MultiLabelScorer, TextScorer, edits, scorer_for, ssim
from edgert.runtime import Classification, DepthMap, OutputImage, Segmentation, Text


def values(scorer: Any, records: list[Any]) -> dict[str, float]:
    notes = [scorer.note(n, one) for n, one in enumerate(records)]
    found = scorer.scores(notes, None)
    for one in found.values():
        assert one.values(np.ones((1, len(notes))))[0] == pytest.approx(one.value, nan_ok=True)
    return {name: one.value for name, one in found.items()}


def some(*scores: float) -> Classification:
    """Of classes 0, 1 ..., the best first."""
    order = np.argsort(scores)[::-1]
    return Classification(np.array(scores, np.float32)[order], order.astype(np.int32))


def test_several_labels() -> None:
    """Class 0: ranked right, wrong, right: precisions of 1 up to a recall of 0.5, 2/3 beyond; class 1: the best is."""
    truth = labels.GroundTruthLabels(((0, 1), (), (0,)))
    found = values(MultiLabelScorer(truth), [some(0.9, 0.8), some(0.7, 0.1), some(0.6, 0.65)])
    of_0 = (51 * 1 + 50 * 2 / 3) / 101  # of 101 recalls, 0.00 to 0.50 and 0.51 to 1.00
    assert found == {"map": pytest.approx((of_0 + 1) / 2), "top1": pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("one", "other", "count"), [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
)
def test_edits(one: str, other: str, count: int) -> None:
    assert edits(one, other) == edits(other, one) == count


def test_texts() -> None:
    truth = labels.GroundTruthTexts(("kitten", "12"))
    found = values(TextScorer(truth), [Text("sitting", 0.9), Text("12", 0.9)])
    assert found == {"cer": pytest.approx(3 / 8), "exact": pytest.approx(0.5)}
    with pytest.raises(ConfigError, match="labels of texts do not fit this model"):
        TextScorer(truth).note(0, some(0.5))


def photo(path: Path, height: int = 20, width: int = 30, seed: int = 0) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    assert cv2.imwrite(str(path), pixels)
    return pixels


WHOLE = (0.0, 0.0, 30.0, 20.0)


def test_depth_in_meters(tmp_path: Path) -> None:
    """Half of the image 10 % too far, a quarter a third too far, the rest unknown."""
    photo(tmp_path / "images" / "a.png")
    (tmp_path / "depth").mkdir()
    true = np.full((20, 30), 2.0, np.float32)
    true[15:] = 0
    np.save(tmp_path / "depth" / "a.npy", true)
    made = np.full((20, 30), 2.2, np.float32)
    made[10:] = 2.0 * 4 / 3
    dataset = open_dataset(tmp_path, DepthTask(depth="metric"))
    assert isinstance(dataset.ground_truth, labels.GroundTruthDepth)
    wanted = {"abs_rel": (2 * 0.1 + 1 / 3) / 3, "rmse": np.sqrt((2 * 0.04 + 4 / 9) / 3), "delta1": 2 / 3}
    found = values(scorer_for(dataset.ground_truth), [DepthMap(made, WHOLE, "metric")])
    assert found == pytest.approx(wanted, rel=1e-5)
    assert cv2.imwrite(str(tmp_path / "depth" / "a.png"), (true * 1000).astype(np.uint16))
    (tmp_path / "depth" / "a.npy").unlink()
    dataset = open_dataset(tmp_path, DepthTask(depth="metric"))
    assert dataset.ground_truth is not None
    assert values(scorer_for(dataset.ground_truth), [DepthMap(made, WHOLE, "metric")]) == pytest.approx(
        wanted, rel=1e-5
    )


@pytest.mark.parametrize(
    ("unit", "of"), [("relative", lambda depth: 3 * depth - 1), ("inverse", lambda depth: 5 / depth + 2)]
)
def test_depth_without_a_unit_is_fitted(unit: str, of: Any, tmp_path: Path) -> None:
    true = np.linspace(1, 9, 600, dtype=np.float32).reshape(20, 30)
    np.save(tmp_path / "a.npy", true)
    scorer = scorer_for(labels.GroundTruthDepth((tmp_path / "a.npy",)))
    found = values(scorer, [DepthMap(of(true).astype(np.float32), WHOLE, unit)])
    assert found == pytest.approx({"abs_rel": 0, "rmse": 0, "delta1": 1}, abs=1e-3)
    assert values(scorer, [DepthMap(np.ones_like(true), WHOLE, unit)])["abs_rel"] > 0.3


def test_depth_that_cannot_be_read(tmp_path: Path) -> None:
    photo(tmp_path / "color.png")
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "archive.npz", np.zeros((2, 2)))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    (tmp_path / "deep.npy").write_bytes(b"\x93NUMPY\1\0" + (5000).to_bytes(2, "little") + b"(" * 4999 + b"\n")
    for name in (
        "color.png",
        "text.npy",
        "cube.npy",
        "empty.npy",
        "archive.npy",
        "deep.npy",
        "missing.png",
        "missing.npy",
    ):
        with pytest.raises(ConfigError, match="depth"):
            labels.read_depth(tmp_path / name)


def test_pairs_of_images(tmp_path: Path) -> None:
    photo(tmp_path / "low" / "a.png")
    true = photo(tmp_path / "high" / "a.png", seed=1)
    dataset = open_dataset(tmp_path, ImageTask(image="unit"))
    assert isinstance(dataset.ground_truth, labels.GroundTruthPictures)
    scorer = scorer_for(dataset.ground_truth)
    off = np.where(true < 250, true + 5, true - 5).astype(np.uint8)
    found = values(scorer, [OutputImage(off, WHOLE)])
    assert found["psnr"] == pytest.approx(20 * np.log10(255 / 5)) and 0.98 < found["ssim"] < 1
    assert values(scorer, [OutputImage(true, WHOLE)]) == pytest.approx({"psnr": 100, "ssim": 1})
    with pytest.raises(ConfigError, match="cannot compare a part of an image"):
        scorer.note(0, OutputImage(true, (5.0, 0.0, 25.0, 20.0)))
    (tmp_path / "high" / "a.png").rename(tmp_path / "high" / "b.png")
    with pytest.raises(ConfigError, match=r"1 of 1 images in .*low have no target"):
        open_dataset(tmp_path, ImageTask(image="unit"))


def test_structural_similarity_is_scikit_images() -> None:
    """structural_similarity(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, channel_axis=2) of 0.26."""
    random = np.random.default_rng(7)
    one = cv2.GaussianBlur(random.integers(0, 256, (40, 50, 3), np.uint8), (5, 5), 2)
    other = np.clip(one.astype(np.int64) + random.integers(-20, 21, one.shape), 0, 255).astype(np.uint8)
    assert ssim(one, other) == pytest.approx(0.6623337390563133, abs=1e-6)


def test_lists_of_several_labels_and_of_texts(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        photo(tmp_path / "images" / name)
    file = tmp_path / "list.csv"
    file.write_text("file,labels\na.png,dog;cat\nb.png,\nc.png,1\n")
    dataset = open_dataset(file, ClassifyTask(classify="multilabel"), ("cat", "dog"))
    assert isinstance(dataset.ground_truth, labels.GroundTruthLabels)
    named = {dataset.images.name(n): one for n, one in enumerate(dataset.ground_truth.classes)}
    assert named == {"a.png": (0, 1), "b.png": (), "c.png": (1,)}
    file.write_text('file,text\na.png,"one, two"\nb.png,\nc.png,3\n')
    dataset = open_dataset(file)
    assert isinstance(dataset.ground_truth, labels.GroundTruthTexts)
    assert set(dataset.ground_truth.texts) == {"one, two", "", "3"}
    file.write_text("file,labels\na.png,boat\n")
    with pytest.raises(ConfigError, match="no class 'boat'"):
        open_dataset(file, None, ("cat", "dog"))


def test_masks_of_pascal_voc(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        photo(tmp_path / "JPEGImages" / f"{name}.jpg")
    (tmp_path / "SegmentationClass").mkdir()
    mask = np.zeros((20, 30), np.uint8)
    mask[:10], mask[19] = 1, 255
    for name in ("a", "b"):
        assert cv2.imwrite(str(tmp_path / "SegmentationClass" / f"{name}.png"), mask)
    task = SegmentTask(segment="argmax")
    assert len(open_dataset(tmp_path, task).images) == 2
    (tmp_path / "ImageSets" / "Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Segmentation" / "val.txt").write_text("b\n")
    dataset = open_dataset(tmp_path, task)
    assert dataset.images.name(0) == "b.jpg" and dataset.ground_truth is not None
    found = np.zeros((20, 30), np.uint8)
    found[:5] = 1
    wanted = (150 / 300 + 270 / 420) / 2
    assert values(scorer_for(dataset.ground_truth), [Segmentation(found, WHOLE)]) == {"miou": pytest.approx(wanted)}
