"""What ``batch:`` of a stage comes to: refused with its reason, or how batches come about, in words."""

from pathlib import Path

import numpy as np
import pytest

from edgert import Pipeline
from edgert.assemble import batches
from edgert.config import InferStage, PipelineFile, flow, load_pipeline, stages
from edgert.errors import ConfigError
from edgert.graph import to_bytes
from tests.helpers import models

TEXT = """
name: batched
models: {{net: {{onnx: net.onnx, task: {{embed: none}}}}}}
stages:
  one: {{source: {one}}}
  two: {{source: {two}}}
  find: {{infer: net, from: [one, two], batch: {{max: 4, wait: 5ms}}}}
  last: {{sink: callback, from: find}}
"""


def written(folder: Path, one: str, two: str) -> PipelineFile:
    (folder / "net.onnx").write_bytes(to_bytes(models.means(("n", 3, 8, 8))))
    (folder / "batched.yaml").write_text(TEXT.format(one=one, two=two))
    return load_pipeline(folder / "batched.yaml")


@pytest.mark.parametrize(
    "one, two, why",
    [
        ("api", "synthetic:noise", ""),
        ("film.mp4", "clip.mp4", ""),
        ("film.mp4", "rtsp://camera/stream", "two is live"),
        ("film.mp4, realtime: true", "clip.mp4", "one is live"),
        ("rtsp://a/b", "rtsp://c/d", "one and two are live"),
    ],
)
def test_a_batch_is_filled_where_all_sources_can_wait(tmp_path: Path, one: str, two: str, why: str) -> None:
    file = written(tmp_path, one, two)
    assert batches.why_not_wait(file.config, "find", tmp_path) == why


def test_what_happens_is_told_in_words() -> None:
    assert batches.describe_batches(8, "") == "up to 8 frames a run, which a free model waits for"
    shown = "up to 8 frames a run, of those that came while it was busy, as north is live"
    assert batches.describe_batches(8, "north is live") == shown


@pytest.mark.parametrize(("queue", "most", "room"), [(0, 0, 8), (3, 0, 3), (0, 8, 24), (0, 32, 40)])
def test_a_program_may_submit_some_frames_before_it_looks_at_a_result(queue: int, most: int, room: int) -> None:
    source = stages.SourceStage.model_validate({"source": "api", "queue": queue or None})
    find = InferStage.model_validate({"infer": "net", "from": "cam", "batch": {"max": most} if most else None})
    assert flow.queue_of(source, find, live=False)[0] == room


def test_batches_are_refused_where_results_of_all_frames_come_together(tmp_path: Path) -> None:
    """[N, 7] of YOLOv7 has the number of the image in each row, and rows of all images."""
    (tmp_path / "net.onnx").write_bytes(to_bytes(models.constant({"rows": np.zeros((3, 7))}, ("n", 3, 64, 64))))
    text = TEXT.format(one="api", two="synthetic:noise").replace("embed: none", "detect: yolov10")
    (tmp_path / "batched.yaml").write_text(text)
    with pytest.raises(ConfigError, match="'rows' has no batch dimension") as caught:
        Pipeline(tmp_path / "batched.yaml")
    assert caught.value.where.endswith("stages.find.batch") and "leave batch out" in caught.value.fix


def test_a_batch_larger_than_the_model_s_is_refused() -> None:
    stage = InferStage.model_validate({"infer": "net", "from": "one", "batch": {"max": 4}})
    batches.check_batch_size(stage, 4, "f.yaml:3", in_bundle=False)
    with pytest.raises(ConfigError, match="batches of 4 for a model that takes 1 at a time") as caught:
        batches.check_batch_size(stage, 1, "f.yaml:3", in_bundle=False)
    assert caught.value.where == "f.yaml:3" and "left open" in caught.value.fix
    with pytest.raises(ConfigError) as caught:
        batches.check_batch_size(stage, 1, "f.yaml:3", in_bundle=True)
    assert "in the bundle" in caught.value.why


@pytest.mark.parametrize(
    ("live", "batch", "queue"),
    [(False, 32, 32), (False, 8, 16), (False, 6, 12), (False, 2, 4), (False, None, 4), (True, 8, 1)],
)
def test_the_next_batch_of_a_file_has_room_while_this_one_is_brought_to_the_model(
    live: bool, batch: int | None, queue: int
) -> None:
    source = stages.SourceStage.model_validate({"source": "belt.mp4"})
    section = {"infer": "net", "from": "belt", **({"batch": {"max": batch}} if batch else {})}
    assert flow.queue_of(source, InferStage.model_validate(section), live)[0] == queue
