"""From a task to its decoder, and its labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from edgert.config.model_section import DetectTask, TaskConfig
from edgert.errors import ConfigError
from edgert.stages.decode.classify import Classify, Embed
from edgert.stages.decode.decoded import Detr, Ssd
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.kinds import decoder_for, read_labels
from edgert.stages.decode.maps import Heatmap, SegmentArgmax, SegmentThreshold
from edgert.stages.decode.yolo import YoloPose, YoloX
from tests.helpers.errors import Exactly, raises
from tests.helpers.known_boxes import identity

TASK = TypeAdapter(TaskConfig)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"detect": "yolox", "score": 0.3, "iou": 0.6, "limit": 9}, Detector(YoloX(), 0.3, 0.6, 9, ("a",))),
        ({"detect": "yolox", "options": {"strides": [8, 16]}}, Detector(YoloX((8, 16)), labels=("a",))),
        ({"detect": "ssd", "options": {"background": "none"}}, Detector(Ssd("none"), labels=("a",))),
        (
            {"detect": "ssd", "options": {"background": "none", "agnostic": True}},
            Detector(Ssd("none"), labels=("a",), agnostic=True),
        ),
        ({"detect": "detr"}, Detector(Detr(label_count=1), labels=("a",))),
        ({"classify": "logits", "top": 3}, Classify("logits", 3, ("a",))),
        ({"segment": "argmax"}, SegmentArgmax(("a",))),
        ({"segment": "threshold", "threshold": 0.3}, SegmentThreshold(0.3, ("a",))),
        ({"keypoints": "heatmap", "score": 0.1}, Heatmap(0.1, ("a",))),
        ({"keypoints": "yolo-pose", "limit": 2}, YoloPose(0.25, 0.45, 2, ("a",))),
        ({"embed": "l2"}, Embed("l2")),
        ({"embed": "none"}, Embed("none")),
    ],
)
def test_a_task_s_settings_reach_the_decoder(task: dict[str, Any], expected: object) -> None:
    assert decoder_for(TASK.validate_python(task), ("a",)) == expected


@pytest.mark.parametrize(
    ("options", "what", "why"),
    [
        ({"backgrund": "none"}, "no option 'backgrund'; did you mean 'background'?", "background, boxes, order"),
        ({"background": "last"}, "option 'background' of decoder 'ssd' cannot be 'last'", "'first' or 'none'"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], what: str, why: str) -> None:
    with raises(ConfigError, what=what, why=why, where=Exactly("p.yaml:4 models.faces.task")):
        decoder_for(DetectTask(detect="ssd", options=options), (), "p.yaml:4 models.faces.task")


def test_what_edgert_sets_is_not_an_option() -> None:
    with pytest.raises(ConfigError, match="no option 'label_count'"):
        decoder_for(DetectTask(detect="detr", options={"label_count": 3}), ())


USERS = """
def count(outputs, geometry, unit="px"):
    return len(outputs), geometry.network, unit

class Scaled:
    def __init__(self, by):
        self.by = by
    def __call__(self, outputs, geometry):
        return float(outputs[0].sum()) * self.by

class Mute:
    pass
"""


def test_a_user_s_function_gets_its_args_with_every_call(tmp_path: Path) -> None:
    (tmp_path / "edgert_test_decoder_a.py").write_text(USERS)
    task = TASK.validate_python({"python": "edgert_test_decoder_a:count", "args": {"unit": "mm"}})
    decoder = decoder_for(task, (), search=tmp_path)
    decoder.check(((3,),), (8, 4))
    assert decoder([np.ones(3)], identity((8, 4))) == (1, (8, 4), "mm")


def test_a_user_s_class_is_made_once_with_its_args(tmp_path: Path) -> None:
    (tmp_path / "edgert_test_decoder_b.py").write_text(USERS)
    task = TASK.validate_python({"python": "edgert_test_decoder_b:Scaled", "args": {"by": 2}})
    assert decoder_for(task, (), search=tmp_path)([np.ones(3)], identity((8, 4))) == 6
    with pytest.raises(ConfigError, match="cannot make an object of"):
        decoder_for(TASK.validate_python({"python": "edgert_test_decoder_b:Scaled"}), (), search=tmp_path)
    with pytest.raises(ConfigError, match="cannot be called"):
        decoder_for(TASK.validate_python({"python": "edgert_test_decoder_b:Mute"}), (), search=tmp_path)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "labels.txt"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        b"car\ntruck",
        b"car\r\ntruck\r\n\r\n",
        b" car \n\ttruck\n\n \n",
        b"\xef\xbb\xbfcar\ntruck\n",
        b"car\rtruck\r",
        "car\r\ntruck\r\n".encode("utf-16"),
        "car\ntruck".encode("utf-16-be"),
    ],
)
def test_one_name_a_line(tmp_path: Path, content: bytes) -> None:
    assert read_labels(written(tmp_path, content)) == ("car", "truck")


def test_names_may_hold_anything_else(tmp_path: Path) -> None:
    assert read_labels(written(tmp_path, "grüner Apfel, 2 kg\n# no comment\n".encode())) == (
        "grüner Apfel, 2 kg",
        "# no comment",
    )


@pytest.mark.parametrize(
    ("content", "why"), [(b"", "it is empty"), (b"\n \n", "it is empty"), (b"car\n\ntruck\n", "line 2 is blank")]
)
def test_what_would_shift_the_classes_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    with raises(ConfigError, why=Exactly(why), where=Exactly("p.yaml:3 task.labels")):
        read_labels(written(tmp_path, content), "p.yaml:3 task.labels")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path, written(tmp_path, b"\xff\xfe\x00ca")):
        with raises(ConfigError, where=Exactly("here")):
            read_labels(path, "here")
