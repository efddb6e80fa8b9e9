"""Datasets: order, what is refused, and that they survive being sent to another process."""

import hashlib
import pickle  # noqa: TID251 - what a process pool does to a dataset
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.dataset import ImageDataset, open_images
from edgert.errors import ConfigError, StageError
from tests.helpers.clips import write_clip
from tests.helpers.errors import Exactly, raises


def write(path: Path, value: int = 0, size: tuple[int, int] = (8, 6)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((size[1], size[0], 3), value, np.uint8))
    return path


def names(images: ImageDataset) -> list[str]:
    return [images.name(n) for n in range(len(images))]


def value(images: ImageDataset, index: int) -> int:
    frame = images.frame(index)
    found = int(frame.planes[0][0, 0, 0])
    frame.lease.release()
    return found


def test_a_folder_is_shuffled_the_same_way_everywhere(tmp_path: Path) -> None:
    for number in reversed(range(20)):
        write(tmp_path / f"class{number // 5}_{number}.png", number)
    (tmp_path / "labels.txt").write_text("bolt")
    wanted = sorted(
        (f"class{n // 5}_{n}.png" for n in range(20)), key=lambda name: hashlib.sha256(name.encode()).digest()
    )
    images = open_images(tmp_path)
    assert names(images) == wanted
    assert [value(images, n) for n in range(20)] == [int(name.split("_")[1][:-4]) for name in wanted]
    assert names(open_images(str(tmp_path), limit=7)) == wanted[:7]
    assert len({name[:6] for name in wanted[:7]}) >= 3, "the first few should be of several classes"


def test_a_folder_of_folders_and_a_glob(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "1.png"), write(tmp_path / "dog" / "1.png"), write(tmp_path / "dog" / "2.bmp")
    assert sorted(names(open_images(tmp_path))) == ["cat/1.png", "dog/1.png", "dog/2.bmp"]
    assert sorted(names(open_images(tmp_path / "*" / "1.png"))) == ["cat/1.png", "dog/1.png"]
    assert names(open_images(f"{tmp_path}/**/*.bmp")) == ["dog/2.bmp"]


def test_a_text_that_lists_images(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path / "images" / f"{number}.png", number)
    listed = tmp_path / "some.txt"
    listed.write_text("".join(f"./images/{n}.png\r\n" for n in (4, 1, 3)) + f"{tmp_path}/images/../images/1.png\n")
    images = open_images(listed)
    assert sorted(names(images)) == ["1.png", "3.png", "4.png"]
    assert names(images) == [name for name in names(open_images(tmp_path / "images")) if name in names(images)]
    listed.write_text("./images/9.png\n")
    with pytest.raises(ConfigError, match=r"1 of 1 images that .*some\.txt lists are missing, first on line 1"):
        open_images(listed)
    listed.write_text("\n")
    with pytest.raises(ConfigError, match="no image was given"):
        open_images(listed)


def test_listed_files_keep_their_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.png", n) for n, name in enumerate("cab")]
    images = open_images(paths)
    assert [value(images, n) for n in range(3)] == [0, 1, 2]
    assert names(open_images(paths, limit=2)) == [str(path) for path in paths[:2]]
    assert len(open_images(paths[0])) == 1


def test_arrays_are_taken_as_they_are() -> None:
    image = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    images = open_images([image, image[:2]])
    frame = images.frame(1)
    assert (frame.width, frame.height) == (5, 2) and np.shares_memory(frame.planes[0], image)
    with pytest.raises(ConfigError, match=r"image 0 is float32 \[4, 5\]"):
        open_images([np.zeros((4, 5), np.float32)])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="all files or all arrays"):
        open_images([image, "a.png"])


def test_a_path_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "photos" / "a.png")
    with raises(ConfigError, why="did you mean 'photos'?") as caught:
        open_images(tmp_path / "fotos" / "deeper", where="p.yaml:3 models.net.calibrate.images")
    assert caught.value.where.startswith("p.yaml:3")
    with pytest.raises(ConfigError, match="no image matches"):
        open_images(tmp_path / "photos" / "*.tif")
    with raises(ConfigError, why="did you mean 'a.png'?"):
        open_images([tmp_path / "photos" / "a.pgn"])


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match="has no image"):
        open_images(tmp_path)
    with pytest.raises(ConfigError, match="the list is empty"):
        open_images([])


def test_files_that_are_no_images_are_told_at_once_and_together(tmp_path: Path) -> None:
    write(tmp_path / "good.png")
    for number in range(7):
        (tmp_path / f"bad{number}.jpg").write_bytes(b"not an image" if number else b"")
    with raises(ConfigError, what=Exactly("7 of 8 images cannot be read")) as caught:
        open_images(tmp_path)
    assert caught.value.why.count(".jpg") == 5 and "and 2 more" in caught.value.why


def test_damage_that_shows_only_when_decoding_is_told_of_all_images(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.png", size=(64, 64))
    for name in "ab":
        path = tmp_path / f"{name}.png"
        path.write_bytes(path.read_bytes()[:30])
    images = open_images(tmp_path)
    broken = names(images).index("b.png")
    with raises(ConfigError, what=Exactly("2 of 3 images cannot be read"), why="b.png, a.png"):
        images.frame(broken)


def test_an_image_dataset_survives_pickling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "photos" / "a.png", 9)
    clip = write_clip(tmp_path / "clip.mp4", 12)
    monkeypatch.chdir(tmp_path)
    image_datasets = [open_images("photos"), open_images("clip.mp4", limit=3)]
    monkeypatch.chdir("/")
    image_datasets[1].frame(1).lease.release()
    for images in image_datasets:
        again: ImageDataset = pickle.loads(pickle.dumps(images))
        assert names(again) == names(images)
        first, second = images.frame(0), again.frame(0)
        np.testing.assert_array_equal(first.to_bgr(), second.to_bgr())
    assert clip.exists()


def counter(images: ImageDataset, index: int) -> bytes:
    frame = images.frame(index)
    luma = frame.planes[0].tobytes()
    frame.lease.release()
    return luma


def test_frames_of_a_video_are_spread_evenly_and_can_be_had_in_any_order(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", 30)
    whole, few = open_images(clip), open_images(clip, limit=5)
    assert len(whole) == 30 and len(open_images(clip, limit=99)) == 30
    assert names(few) == [f"clip.mp4 frame {n}" for n in (3, 9, 15, 21, 27)]
    frames = [counter(whole, n) for n in range(30)]
    assert len(set(frames)) == 30
    assert [counter(few, n) for n in (4, 0, 2, 1, 3)] == [frames[n] for n in (27, 3, 15, 9, 21)]


def test_a_video_serves_several_threads(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", 30)
    wanted = [counter(open_images(clip), n) for n in range(30)]
    images = open_images(clip)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda n: counter(images, n), range(30))) == wanted


def test_a_frame_stays_valid_while_it_is_held(tmp_path: Path) -> None:
    images = open_images(write_clip(tmp_path / "clip.mp4", 30))
    held = images.frame(0)
    before = held.planes[0].copy()
    for n in range(1, 30):
        images.frame(n).lease.release()
    assert held.lease.alive
    np.testing.assert_array_equal(held.planes[0], before)
    held.lease.release()


def test_what_is_neither_image_nor_video_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "annotations.json"
    path.write_text('{"images": []}' * 100)
    with pytest.raises(StageError, match="cannot open"):
        open_images(path)
