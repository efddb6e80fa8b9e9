"""Detections as supervision's: by a double of its class, which takes what the real one takes, and by the real one."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgert.errors import ConfigError
from edgert.runtime.records import Detections, Segmentation

BOXES = np.array([[10, 10, 30, 20], [-4, 2, 4, 10], [5, 5, 5, 5]], np.float32)
FULL = np.ones((4, 4), np.uint8)


def found(count: int = 3) -> Detections:
    masks = tuple(Segmentation(FULL, tuple(box.tolist())) for box in BOXES[:count])
    return Detections(
        boxes=BOXES[:count],
        scores=np.array([0.9, 0.8, 0.7], np.float32)[:count],
        classes=np.array([1, 0, 7], np.int32)[:count],
        labels=("person", "car"),
        ids=np.array([4, 5, 6], np.int64)[:count],
        corners=np.zeros((count, 4, 2), np.float32),
        masks=masks,
        points=np.zeros((count, 17, 3), np.float32),
    )


def check(taken: Any) -> None:
    assert taken.xyxy is not None and np.array_equal(taken.xyxy, BOXES)
    assert taken.confidence.tolist() == pytest.approx([0.9, 0.8, 0.7]) and taken.class_id.tolist() == [1, 0, 7]
    assert taken.tracker_id.tolist() == [4, 5, 6] and taken.data["class_name"].tolist() == ["car", "person", ""]
    assert taken.data["xyxyxyxy"].shape == (3, 4, 2) and taken.data["keypoints"].shape == (3, 17, 3)
    assert taken.mask.shape == (3, 24, 32) and taken.mask.dtype == bool
    assert taken.mask.sum(axis=(1, 2)).tolist() == [200, 32, 0] and taken.mask[0, 10:20, 10:30].all()


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("supervision")
    module.Detections = lambda **fields: SimpleNamespace(**fields)
    monkeypatch.setitem(sys.modules, "supervision", module)


@pytest.mark.usefixtures("double")
def test_everything_is_where_supervision_has_it() -> None:
    check(found().to_supervision((32, 24)))


@pytest.mark.usefixtures("double")
def test_what_is_unknown_stays_out() -> None:
    taken = Detections(
        *(np.zeros(shape, kind) for shape, kind in (((0, 4), "f4"), (0, "f4"), (0, "i4")))
    ).to_supervision()
    assert (taken.data, taken.mask, taken.tracker_id, len(taken.xyxy)) == ({}, None, None, 0)
    assert found().to_supervision().mask is None  # how large the image is nobody said


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(ConfigError, match="needs the package supervision"):
        found().to_supervision()


@pytest.mark.slow
def test_the_real_one_takes_them() -> None:
    pytest.importorskip("supervision", reason="supervision (extra 'supervision') is not installed")
    check(found().to_supervision((32, 24)))
    assert len(found(0).to_supervision((32, 24))) == 0
    assert found().to_supervision((32, 24))[[True, False, False]].data["class_name"].tolist() == ["car"]
