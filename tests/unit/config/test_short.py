"""Input and task on one line, and mistakes in edgert's words."""

from pathlib import Path

import pytest

from edgert.config import ClassifyTask, DetectTask, EmbedTask, InputConfig, KeypointsTask, PythonTask, SegmentTask
from edgert.config.pipeline_file import input_words, key_value, parse_input, parse_task, task_words
from edgert.errors import ConfigError
from tests.helpers.pipeline_text import MINIMAL, refused


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", InputConfig()),
        ("letterbox rgb mean=0 std=255", InputConfig(std=255)),
        (
            "  letterbox top_left bgr mean=103.5,116,123 size=416x320 pad=0",
            InputConfig(anchor="top_left", color="bgr", mean=(103.5, 116, 123), size="416x320", pad=0),
        ),
        ("center_crop crop=0.875 area nhwc", InputConfig(resize="center_crop", crop=0.875, interpolation="area",
                                                         layout="nhwc")),
        ("resize=none color=gray std=127.5", InputConfig(resize="none", color="gray", std=127.5)),
    ],
)  # fmt: skip
def test_inputs(text: str, wanted: InputConfig) -> None:
    assert parse_input(text) == wanted
    assert parse_input(input_words(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("leterbox rgb", "cannot understand 'leterbox'; did you mean 'letterbox'?"),
        ("letterbox stretch", "'stretch' sets resize a second time"),
        ("std=1 std=2", "'std=2' sets std a second time"),
        ("sizes=64x64", "did you mean 'size'?"),
        ("size=64", "cannot use 'size=64'"),
        ("mean=1,2", "cannot use 'mean=1,2': mean needs 1 or 3 values"),
        ("std=0", "std is divided by and cannot be 0"),
        ("crop=2", "cannot use 'crop=2'"),
        ("color=grey", "cannot use 'color=grey'"),
    ],
)
def test_wrong_inputs(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_input(text)
    assert what in caught.value.what and caught.value.where == "--input"


def test_the_nearest_value_is_told() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gray'"):
        parse_input("color=grey")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("detect yolox", DetectTask(detect="yolox")),
        ("detect yolox score=0.3 strides=8,16", DetectTask(detect="yolox", score=0.3, options={"strides": [8, 16]})),
        ("classify", ClassifyTask(classify="auto")),
        ("classify logits top=3", ClassifyTask(classify="logits", top=3)),
        ("segment threshold threshold=0.4", SegmentTask(segment="threshold", threshold=0.4)),
        ("embed none", EmbedTask(embed="none")),
        ("keypoints yolo-pose", KeypointsTask(keypoints="yolo-pose")),
        ("python mine:decode", PythonTask(python="mine:decode")),
        ("classify auto labels=a/1.txt", ClassifyTask(classify="auto", labels="a/1.txt")),
    ],
)
def test_tasks(text: str, wanted: object) -> None:
    assert parse_task(text) == wanted


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "unknown task ''"),
        ("clasify", "unknown task 'clasify'; did you mean 'classify'?"),
        ("detect", "detect needs a second word"),
        ("detect yolo", "cannot use 'detect yolo'"),
        ("detect yolox fast", "cannot understand 'fast'"),
        ("detect yolox score=7", "cannot use 'score=7'"),
        ("classify auto topp=3", "unknown key 'topp'; did you mean 'top'?"),
    ],
)
def test_wrong_tasks(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_task(text)
    assert what in caught.value.what and caught.value.where == "--task"


def test_sections_are_told_on_one_line() -> None:
    assert (
        input_words(InputConfig(std=255, size="416x320"))
        == "letterbox center pad=114 linear rgb mean=0 std=255 size=416x320"
    )
    assert task_words(DetectTask(detect="yolox", score=0.4)) == "detect yolox score=0.4 iou=0.45 limit=300"
    assert task_words(PythonTask(python="my:decode", args={"top": 2})) == "python my:decode top=2"
    assert (key_value("arena", False), key_value("power", 15.0)) == ("arena=false", "power=15")


@pytest.mark.parametrize(
    "task",
    [
        DetectTask(detect="ssd", score=0.5, options={"variances": [0.1, 0.2]}),
        ClassifyTask(classify="softmax", top=3),
        SegmentTask(segment="threshold", threshold=0.3),
        KeypointsTask(keypoints="heatmap"),
        EmbedTask(embed="l2"),
    ],
)
def test_what_is_told_of_a_task_is_read_again(task: DetectTask) -> None:
    assert parse_task(task_words(task)) == task


_STAGE = "stages:\n  cam: {source: a.mp4, %s}\n"
_MODEL = "models:\n  m: {onnx: a, task: {detect: yolox}, %s}\n" + MINIMAL


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("budgets: {cpu: 1%}\n" + MINIMAL, "expected a number of CPU cores above 0, like 1.5"),
        ("budgets: {cpu: 0}\n" + MINIMAL, "expected a number of CPU cores above 0, like 1.5"),
        ("budgets: {cpu: yes}\n" + MINIMAL, "expected a number of CPU cores above 0, like 1.5"),
        ("budgets: {latency: 0ms}\n" + MINIMAL, "expected more than 0"),
        ("budgets: {power: 0W}\n" + MINIMAL, "expected more than 0"),
        ("budgets: {when_exceeded: halt}\n" + MINIMAL, "expected warn, degrade or stop"),
        ("budgets: {when_exceeded: stopp}\n" + MINIMAL, "expected warn, degrade or stop; did you mean 'stop'?"),
        ("name: 5\n" + MINIMAL, "expected text; a number is text in quotes"),
        ("name: ''\n" + MINIMAL, "expected some text"),
        ("stages: {cam: {source: 0}}\n", "a number is not a source; the camera of that number is v4l2:///dev/video0"),
        ("stages: {cam: {source: '2'}}\n", "a number is not a source; the camera of that number is v4l2:///dev/video2"),
        (_STAGE % "fps: fast", "expected a number"),
        (_STAGE % "fps: .nan", "expected a number"),
        (_STAGE % "fps: 0", "expected 1e-05 or more"),
        (_STAGE % "fps: 2000", "expected 1000 or less"),
        (_STAGE % "limit: 1.5", "expected a whole number"),
        (_STAGE % "queue: 0", "expected 1 or more"),
        (_STAGE % "loop: perhaps", "expected true or false"),
        (_MODEL % "input: letterbox", "expected keys, each with a value"),
        ("stages: {9x: {source: a.mp4}}\n", "expected a name: a-z, A-Z, digits, _ and -, not a digit first"),
        ("stages: {x: {source: a.mp4}, y: {python: f, from: x}}\n", "expected module:function"),
    ],
)
def test_a_value_that_cannot_be_used(tmp_path: Path, text: str, why: str) -> None:
    assert refused(tmp_path, text).why == why


def test_entries_are_counted(tmp_path: Path) -> None:
    empty = "stages: {x: {source: a.mp4}, y: {sink: 'null', from: []}}\n"
    assert refused(tmp_path, empty).what == "stages.y.from: expected entries, at least 1; got 0"
