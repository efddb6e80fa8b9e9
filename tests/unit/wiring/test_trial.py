"""Photos and their views; the model sees exactly what a pipeline would show it, and no run is made twice."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.config import InputConfig
from edgert.errors import ConfigError
from edgert.stages.preprocess import Preprocessor
from edgert.wiring.photos import make_photo, read_photos, scramble_phase
from edgert.wiring.trial import Trial
from tests.helpers.clips import numbered, write_clip


class Echo:
    """A session whose output is its input."""

    def __init__(self, height: int = 24, width: int = 32) -> None:
        self.inputs = {"x": np.zeros((1, 3, height, width), np.float32)}
        self.runs = 0

    def run(self, rows: int | None = None) -> list[np.ndarray]:
        self.runs += 1
        return [self.inputs["x"]]


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


CONTROL = np.zeros((8, 8, 3), np.uint8)
CONFIGS = [
    InputConfig(),
    InputConfig(anchor="top_left", pad=0, color="bgr"),
    InputConfig(resize="stretch", mean=(127.5,), std=(127.5,)),
    InputConfig(resize="center_crop", crop=0.875, color="bgr"),
    InputConfig(resize="center_crop", interpolation="area"),
    InputConfig(color="rgb", mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0)),
]


def test_inputs_are_those_of_the_pipeline_in_any_order() -> None:
    photo = make_photo(Path("p"), noise(77, 53), CONTROL, "classify")
    session, counted = Echo(), []
    trial = Trial(session, [True], "m", lambda: counted.append(1))
    for config in [*CONFIGS, *reversed(CONFIGS)]:
        for view in photo.views:
            (given,), geometry = trial.answer(config, view)
            expected = np.zeros((1, 3, 24, 32), np.float32)
            wanted = Preprocessor(config, expected).into(0, view.frame)
            assert np.array_equal(given, expected[0]), config
            assert geometry == wanted
    assert len(counted) == session.runs == len(CONFIGS) * len(photo.views)


def test_settings_that_make_the_same_input_share_a_run() -> None:
    photo = make_photo(Path("p"), noise(48, 64), CONTROL, "detect")
    session = Echo()
    trial = Trial(session, [True], "m", lambda: None)
    for config in (InputConfig(), InputConfig(pad=0), InputConfig(anchor="top_left"), InputConfig(resize="stretch")):
        trial.answer(config, photo.views[0])
    assert session.runs == 1
    trial.forget()
    trial.answer(InputConfig(), photo.views[0])
    assert session.runs == 2


def test_answers_are_copies_that_outlive_the_next_run() -> None:
    photo = make_photo(Path("p"), noise(48, 64), CONTROL, "detect")
    trial = Trial(Echo(), [True], "m", lambda: None)
    (first,), _ = trial.answer(InputConfig(), photo.views[0])
    before = first.copy()
    trial.answer(InputConfig(std=(255.0,)), photo.views[0])
    assert first == pytest.approx(before)


def scene(width: int = 60, height: int = 40) -> np.ndarray:
    image = np.full((height, width, 3), (200, 120, 40), np.uint8)
    image[10:20, 5:25] = (10, 240, 90)
    return image


def test_a_folder_is_sampled_and_a_video_gives_a_few_frames(tmp_path: Path) -> None:
    for n in range(9):
        cv2.imwrite(str(tmp_path / f"{n}.png"), scene())
    (tmp_path / "notes.txt").write_text("no image")
    clip = write_clip(tmp_path / "clip.mp4", 40)
    found = read_photos([tmp_path], 3)
    assert len({path for path, _ in found}) == 3 and np.array_equal(found[0][1], scene())
    frames, originals = read_photos([clip]), [*numbered(40)]
    assert [path for path, _ in frames] == [clip] * 4
    nearest = [np.argmin([cv2.norm(image, one) for one in originals]) for _, image in frames]
    assert nearest == [1, 11, 21, 31]
    assert len(read_photos([tmp_path, clip])) == 13


def test_a_large_photo_is_shrunk(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "large.jpg"), np.zeros((1000, 3840, 3), np.uint8))
    ((_, image),) = read_photos([tmp_path / "large.jpg"])
    assert image.shape == (500, 1920, 3)
    cv2.imwrite(str(tmp_path / "line.png"), np.zeros((1, 4000, 3), np.uint8))
    ((_, image),) = read_photos([tmp_path / "line.png"])
    assert image.shape == (1, 1920, 3)


def test_missing_broken_and_absent_photos_are_told(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "photo.png"), scene())
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff half a file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"(?s)no images at .*did you mean 'photo.png'"):
        read_photos([tmp_path / "phot.png"])
    with pytest.raises(ConfigError, match="1 of 1 images cannot be read"):
        read_photos([tmp_path / "broken.jpg"])
    with pytest.raises(ConfigError, match="has no image"):
        read_photos([tmp_path / "empty"])
    with pytest.raises(ConfigError, match="no image was given"):
        read_photos([])


@pytest.mark.parametrize(("verb", "count"), [("detect", 3), ("classify", 5), ("text", 4)])
def test_boxes_of_every_view_come_back_to_where_they_are_in_the_photo(verb: str, count: int) -> None:
    photo = make_photo(Path("p.png"), scene(), scene(), verb)
    assert len(photo.views) == count
    for view in photo.views:
        ys, xs = np.nonzero(view.frame.planes[0][..., 1] == 240)
        box = np.array([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], np.float32)
        back = view.boxes(box)[0]
        assert back[2] == 25 and back[3] == 20
        assert back[0] == max(5, view.left) and back[1] == 10
        assert view.columns(np.array([back[0]])) == (box[0, 2] if view.mirrored else box[0, 0])


def test_the_control_keeps_the_colors_and_loses_the_object() -> None:
    image = scene()
    control = scramble_phase(image)
    assert control.shape == image.shape
    assert np.abs(control.mean(axis=(0, 1)) - image.mean(axis=(0, 1))).max() < 12
    flat = (image.reshape(-1, 3) == (10, 240, 90)).all(axis=1).sum()
    kept = (np.abs(control.reshape(-1, 3).astype(int) - (10, 240, 90)).max(axis=1) < 10).sum()
    assert kept < flat / 10
    assert np.array_equal(control, scramble_phase(image))
