import numpy as np
import numpy.typing as npt
import pytest

from pipelines.conveyor import LABELS, Conveyor, GroundTruth

WIDTH, HEIGHT, FPS = 320, 240, 15.0


@pytest.fixture(scope="module")
def scene() -> Conveyor:
    return Conveyor(WIDTH, HEIGHT, FPS, seed=7)


def shot(scene: Conveyor, index: int) -> tuple[npt.NDArray[np.uint8], GroundTruth]:
    image = np.empty((scene.height, scene.width, 3), np.uint8)
    return image, scene.render(index, image)


def test_a_frame_depends_on_seed_and_index_alone(scene: Conveyor) -> None:
    first, before = shot(scene, 40)
    shot(scene, 3)
    again, after = shot(scene, 40)
    fresh, _ = shot(Conveyor(WIDTH, HEIGHT, FPS, seed=7), 40)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, fresh)
    np.testing.assert_array_equal(before.boxes, after.boxes)


def test_another_seed_or_index_is_another_image(scene: Conveyor) -> None:
    image, _ = shot(scene, 40)
    for other in (shot(scene, 41), shot(Conveyor(WIDTH, HEIGHT, FPS, seed=8), 40)):
        assert np.mean(image != other[0]) > 0.5


def test_truth_has_the_promised_types_and_stays_inside_the_image(scene: Conveyor) -> None:
    for index in range(0, 150, 10):
        _, truth = shot(scene, index)
        assert truth.boxes.dtype == np.float32 and truth.boxes.shape == (len(truth.ids), 4)
        assert truth.classes.dtype == np.int32 and truth.ids.dtype == np.int64
        assert (truth.boxes[:, :2] >= 0).all() and (truth.boxes[:, 2:] <= (WIDTH, HEIGHT)).all()
        assert (truth.boxes[:, 2:] - truth.boxes[:, :2] >= 2).all()
        assert len(np.unique(truth.ids)) == len(truth.ids)


def test_a_part_keeps_its_number_and_class_and_moves_with_the_belt(scene: Conveyor) -> None:
    _, before = shot(scene, 30)
    _, after = shot(scene, 33)
    old, new = np.nonzero(before.ids[:, None] == after.ids)
    assert len(old) >= 5
    np.testing.assert_array_equal(before.classes[old], after.classes[new])
    step = after.boxes[new, 2] - before.boxes[old, 2]
    assert np.median(step) > 2 and np.median(np.abs(after.boxes[new, 1] - before.boxes[old, 1])) <= 1


def test_every_kind_passes_and_the_belt_is_never_empty(scene: Conveyor) -> None:
    truths = [shot(scene, index)[1] for index in range(0, 600, 20)]
    assert set(np.concatenate([truth.classes for truth in truths]).tolist()) == set(range(len(LABELS)))
    assert min(len(truth.ids) for truth in truths) >= 4


def test_parts_are_occluded_now_and_then(scene: Conveyor) -> None:
    """A part shrinks and grows again while it passes under the gantry, away from the image's edges."""
    widths: dict[int, list[float]] = {}
    for index in range(150):
        _, truth = shot(scene, index)
        inside = (truth.boxes[:, 0] > 0) & (truth.boxes[:, 2] < WIDTH)
        for number, box in zip(truth.ids[inside].tolist(), truth.boxes[inside], strict=True):
            widths.setdefault(number, []).append(float(box[2] - box[0]))
    assert sum(min(seen) < 0.8 * max(seen) for seen in widths.values()) >= 3


@pytest.mark.parametrize("fps", [0.2, 1.0, 3.0])
def test_a_slow_camera_sees_parts_as_well(fps: float) -> None:
    slow = Conveyor(WIDTH, HEIGHT, fps, seed=9)
    assert all(len(shot(slow, index)[1].boxes) for index in range(40))


def test_it_draws_into_memory_with_padded_rows(scene: Conveyor) -> None:
    padded = np.zeros((HEIGHT, WIDTH + 16, 3), np.uint8)
    scene.render(12, padded[:, :WIDTH])
    np.testing.assert_array_equal(padded[:, :WIDTH], shot(scene, 12)[0])
    assert not padded[:, WIDTH:].any()


def test_frames_far_into_the_stream_still_hold_parts(scene: Conveyor) -> None:
    image, truth = shot(scene, 10**7)
    assert len(truth.ids) >= 4 and image.std() > 10


@pytest.mark.parametrize(
    ("shape", "dtype", "index"),
    [((HEIGHT, WIDTH), np.uint8, 0), ((HEIGHT, WIDTH, 3), np.float32, 0), ((HEIGHT, WIDTH, 3), np.uint8, -1)],
)
def test_a_target_that_does_not_fit_is_refused(
    scene: Conveyor, shape: tuple[int, ...], dtype: type[np.generic], index: int
) -> None:
    with pytest.raises(ValueError, match="conveyor draws"):
        scene.render(index, np.zeros(shape, dtype))


@pytest.mark.parametrize(("width", "height", "fps", "seed"), [(32, 240, 30, 0), (320, 240, 0, 0), (320, 240, 30, -1)])
def test_a_scene_that_cannot_be_is_refused(width: int, height: int, fps: float, seed: int) -> None:
    with pytest.raises(ValueError, match="conveyor needs"):
        Conveyor(width, height, fps, seed)
