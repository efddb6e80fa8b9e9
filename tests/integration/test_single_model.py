"""A model that is called with images: what is inferred of it, what it takes and returns, and wrong input."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import edgert
from edgert.errors import ConfigError, ModelError, StageError
from edgert.installation import demo_images
from tests.integration.test_pipeline_api import ASSETS, threads

PARTS = ASSETS / "parts.onnx"


@pytest.fixture(scope="module")
def images() -> list[Any]:
    stages = {"belt": {"source": demo_images(), "size": "320x240", "limit": 3}}
    with edgert.Pipeline({"stages": stages}) as pipeline:
        return [result.frame.to_bgr() for result in pipeline.results("belt", timeout=20)]


def test_one_line_gives_what_a_pipeline_file_gives(images: list[Any], tmp_path: Path) -> None:
    task = {"detect": "yolox", "labels": ASSETS / "parts.txt"}
    models = {"parts": {"onnx": PARTS, "task": task, "input": {"std": 255, "resize": "letterbox"}}}
    stages = {"camera": {"source": "api"}, "find": {"infer": "parts", "from": "camera"}}
    with edgert.Pipeline({"models": models, "stages": stages}) as pipeline:
        wanted = [pipeline(image).detections for image in images]
    assert cv2.imwrite(str(tmp_path / "a.png"), images[0])
    model = edgert.Model(PARTS)
    found = [*model(images), model(tmp_path / "a.png"), model(images[1][..., ::-1], format="rgb")]
    assert sum(map(len, wanted)) > 3 and isinstance(found[0], edgert.Detections)
    for one, other in zip(found, [*wanted, wanted[0], wanted[1]], strict=True):
        np.testing.assert_allclose(one.boxes, other.boxes, atol=0.01)
        assert one.labels == other.labels and [each.label for each in one] == [each.label for each in other]
    assert any("yolox" in note for note in model.notes) and model([]) == [] and threads()
    del model
    assert not threads()


def test_images_of_several_sizes_and_threads(images: list[Any]) -> None:
    with edgert.Model(
        PARTS, task="detect yolox", input="letterbox rgb std=255", labels=["a", "b", "c", "d", "e"]
    ) as one:
        assert one.notes == () and one(images[0]).labels == ("a", "b", "c", "d", "e")
        assert all(
            (found.boxes[:, 2] <= 90).all() for found in one([np.zeros((50, 90, 3), np.uint8), images[0][:50, :90]])
        )
        with ThreadPoolExecutor(3) as pool:
            found = list(map(len, pool.map(one, images[:1] * 3)))
        assert found == [len(one(images[0]))] * 3
    with edgert.Model(PARTS, score=0.99) as strict:
        assert len(strict(images[0])) <= found[0]
    one.close()
    with pytest.raises(StageError, match="this model was closed"):
        one(images[0])


def test_a_guess_is_said(images: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), edgert.Model(ASSETS / "look.onnx") as model:
        assert isinstance(model(images[0]), edgert.Classification)
    assert "guessed: classify: auto" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), edgert.Model(ASSETS / "look.onnx", task="embed l2") as model:
        assert isinstance(model(images[0]), edgert.Embedding)
    assert "guessed" not in caplog.text


@pytest.mark.parametrize(
    ("image", "kind", "message"),
    [
        ("none.png", ConfigError, "cannot read the image 'none.png'"),
        ("none.png" * 99, ConfigError, "no such file"),
        (ASSETS / "parts.txt", ConfigError, "cannot read the image"),
        (np.zeros((8, 8, 3), np.float32), StageError, "pixels must be uint8"),
        (ASSETS, ConfigError, "it is a folder"),
        (np.zeros((2, 8, 8, 3), np.uint8), StageError, r"not an array \[2, 8, 8, 3\]"),
        (7, StageError, "cannot take int as pixels"),
    ],
)
def test_what_is_no_image_changes_nothing(image: Any, kind: type[Exception], message: str, images: list[Any]) -> None:
    with edgert.Model(PARTS) as model:
        for given in (image, [images[0], image]):
            with pytest.raises(kind, match=message):
                model(given)
        assert len(model(images[0])) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "detect yolvo"}, "yolvo"),
        ({"input": "leterbox"}, "did you mean 'letterbox'"),
        ({"labels": ["bolt"]}, "1 labels for 5 classes"),
        ({"labels": "cocoo"}, "did you mean 'coco'"),
        ({"score": 2.0}, "score=2 is not possible"),
        ({"precision": "int3"}, "int3"),
        ({"engines": ["tensort"]}, "unknown engine 'tensort'"),
    ],
)
def test_settings_that_cannot_be_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        edgert.Model(PARTS, **options)


def test_a_score_for_a_task_without_one_and_a_missing_file_are_errors() -> None:
    with pytest.raises(ConfigError, match="no effect on this task"):
        edgert.Model(ASSETS / "look.onnx", task="embed l2", score=0.5)
    with pytest.raises(ModelError, match="does not exist"):
        edgert.Model("none.onnx")
