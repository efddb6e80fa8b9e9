"""Feeds: bit by bit what a pipeline would put into the model's input."""

import pickle  # noqa: TID251 - what a process pool does to a feed
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.config import InputConfig, ModelConfig
from edgert.config.stages import SourceStage
from edgert.dataset import ImageFeed, feed_of, open_images
from edgert.errors import ModelError, StageError
from edgert.stages.context import Context
from edgert.stages.preprocess import Preprocessor
from edgert.stages.source.files import ImageFiles, VideoFile
from tests.helpers import models
from tests.helpers.clips import write_clip

SIZES = ((40, 30), (30, 44), (64, 64), (33, 21))
CONFIGS = (
    InputConfig(resize="letterbox", mean=(103.5, 116.3, 123.7), std=(57.4, 57.1, 58.4), color="bgr"),
    InputConfig(resize="center_crop", crop=0.875, std=127.5, mean=127.5),
)


def photos(folder: Path) -> Path:
    random = np.random.default_rng(0)
    for number, (width, height) in enumerate(SIZES):
        assert cv2.imwrite(str(folder / f"{number}.png"), random.integers(0, 256, (height, width, 3), np.uint8))
    return folder


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.resize)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_images_are_fed_as_the_pipeline_feeds_them(tmp_path: Path, config: InputConfig, dtype: str) -> None:
    if dtype == "uint8":
        config = config.model_copy(update={"mean": (0.0,), "std": (1.0,)})
    feed = ImageFeed(open_images(photos(tmp_path)), config, "x", (1, 3, 32, 32), dtype)
    tensor = np.empty((1, 3, 32, 32), dtype)
    preprocessor = Preprocessor(config, tensor)
    wanted = {}
    source = ImageFiles("cam", SourceStage(source=f"images:{tmp_path}"), Context())
    for number, frame in enumerate(source.frames(threading.Event())):
        preprocessor.into(0, frame)
        wanted[f"{number}.png"] = tensor.copy()
    fed = {feed.name(n): feed.feeds(n)["x"] for n in range(len(feed))}
    assert fed.keys() == wanted.keys()
    for name, array in fed.items():
        assert array.dtype == dtype and array.tobytes() == wanted[name].tobytes()


def test_a_video_is_fed_as_the_pipeline_feeds_it(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", 8)
    feed = ImageFeed(open_images(clip), CONFIGS[0], "x", (1, 3, 64, 64))
    tensor = np.empty((1, 3, 64, 64), np.float32)
    preprocessor = Preprocessor(CONFIGS[0], tensor)
    source = VideoFile("cam", SourceStage(source=str(clip)), Context(), clip)
    for index, frame in enumerate(source.frames(threading.Event())):
        preprocessor.into(0, frame)
        assert feed.feeds(index)["x"].tobytes() == tensor.tobytes()
        frame.lease.release()
    assert index == len(feed) - 1 == 7


def test_arrays_belong_to_the_caller_and_order_does_not_matter(tmp_path: Path) -> None:
    """An image of another shape leaves nothing of its border behind."""
    feed = ImageFeed(open_images(photos(tmp_path)), CONFIGS[0], "x", (4, 3, 32, 32))
    first = [feed.feeds(n)["x"] for n in range(4)]
    kept = [array.copy() for array in first]
    again = [feed.feeds(n)["x"] for n in (3, 1, 0, 2)]
    for n, array in zip((3, 1, 0, 2), again, strict=True):
        assert array.shape == (1, 3, 32, 32)
        np.testing.assert_array_equal(array, kept[n])
        np.testing.assert_array_equal(first[n], kept[n])


def test_a_feed_is_pickled_and_shared_by_threads(tmp_path: Path) -> None:
    feed = ImageFeed(open_images(photos(tmp_path)), CONFIGS[1], "x", (1, 3, 32, 32))
    wanted = [feed.feeds(n)["x"].tobytes() for n in range(4)]
    again: ImageFeed = pickle.loads(pickle.dumps(feed))
    with ThreadPoolExecutor(3) as pool:
        for one in (feed, again):
            numbers = [n % 4 for n in range(40)]
            found = list(pool.map(lambda n, one=one: one.feeds(n)["x"].tobytes(), numbers))
            assert found == [wanted[n] for n in numbers]


def test_the_feed_of_a_model(tmp_path: Path) -> None:
    model = models.conv((1, 3, "h", "w"))
    config = ModelConfig(onnx="m.onnx", task={"embed": "l2"}, input=InputConfig(size="48x32"))
    feed = feed_of(open_images(photos(tmp_path)), model, config)
    assert (feed.input_name, feed.shape, feed.dtype) == ("x", (1, 3, 32, 48), "float32")
    unsized = config.model_copy(update={"input": InputConfig()})
    assert feed_of(feed.images, models.conv(), unsized).shape == (1, 3, 8, 8)
    four = pickle.loads(pickle.dumps(feed_of(feed.images, models.conv((4, 3, 8, 8)), unsized)))
    assert four.image(0)[0].shape == (1, 3, 8, 8) and four.feeds(0)["x"].shape == (4, 3, 8, 8)
    assert all(np.array_equal(row, four.image(0)[0][0]) for row in four.feeds(0)["x"])
    with pytest.raises(ModelError, match="cannot be run at 48x32"):
        feed_of(feed.images, models.conv(), config)
    with pytest.raises(ModelError, match="dynamic dimensions"):
        feed_of(feed.images, model, unsized)


def test_models_with_further_inputs_are_refused(tmp_path: Path) -> None:
    config = ModelConfig(onnx="m.onnx", task={"embed": "l2"})
    with pytest.raises(ModelError) as caught:
        feed_of(open_images(photos(tmp_path)), models.two_inputs(), config)
    assert "a [2, 3], b [3]" in caught.value.why


def test_a_image_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    feed = ImageFeed(open_images(photos(tmp_path)), InputConfig(resize="none"), "x", (1, 3, 64, 64))
    wrong = [feed.name(n) for n in range(4)].index("3.png")
    with pytest.raises(StageError) as caught:
        feed.feeds(wrong)
    assert caught.value.where == "3.png" and "33x21" in caught.value.what
    assert feed.feeds([feed.name(n) for n in range(4)].index("2.png"))["x"].shape == (1, 3, 64, 64)
