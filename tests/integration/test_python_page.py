"""Every block of these pages runs as it is, beside the files that it names: python.md, gpu.md and robots.md."""

import json
from pathlib import Path
from typing import Any

import cv2
import pytest

import edgert
from edgert.installation import demo_images
from tests.helpers.documents import Piece, blocks
from tests.helpers.recordings import record_tiny
from tests.helpers.ros_bags import write_depth_bag
from tests.integration.test_pipeline_api import ASSETS

BELT = """
models:
  parts: {{onnx: parts.onnx, task: {{detect: yolox, labels: parts.txt}}, input: {{std: 255}}}}
stages:
  camera: {{source: "{source}", size: 320x240, fps: 30, limit: 90, realtime: true}}
  find: {{infer: parts, from: camera}}
  track: {{track: bytetrack, from: find}}
"""
CLIPS = """
models: {parts: {onnx: parts.onnx, task: {detect: yolox}, input: {std: 255}}}
stages: {clip: {source: "videos:clips"}, find: {infer: parts, from: clip}}
"""
FOLLOW = """
models: {parts: {onnx: parts.onnx, task: {detect: yolox, labels: parts.txt}, input: {std: 255}}}
stages:
  camera: {source: "bag:depth.db3#/camera/color", options: {depth: /camera/depth}}
  find: {infer: parts, from: camera}
  track: {track: bytetrack, from: find}
  near: {stage: distance, from: track}
"""
DOOR = """
models: {look: {onnx: look.onnx, task: {embed: l2, match: people.json}, input: {std: 255}}}
stages: {door: {source: api}, who: {infer: look, from: door}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page")
    for name in ("parts.onnx", "parts.txt", "look.onnx"):
        (made / name).write_bytes((ASSETS / name).read_bytes())
    texts = {"belt": BELT.format(source=demo_images()), "clips": CLIPS, "door": DOOR, "follow": FOLLOW}
    for name, text in texts.items():
        (made / f"{name}.yaml").write_text(text)
    (made / "photos").mkdir()
    (made / "clips").mkdir()
    stages: dict[str, Any] = {"belt": {"source": demo_images(), "size": "320x240", "fps": 30, "limit": 12}}
    stages["save"] = {"sink": "video", "from": "belt", "path": made / "belt.mp4"}
    with edgert.Pipeline({"stages": stages}) as pipeline:
        for result in pipeline.results("belt", timeout=20):
            assert cv2.imwrite(str(made / "photos" / f"{result.frame.index}.jpg"), result.frame.to_bgr())
        pipeline.wait(20)
    for name in ("one", "two"):
        (made / "clips" / f"{name}.mp4").write_bytes((made / "belt.mp4").read_bytes())
    write_depth_bag(made / "depth.db3", [cv2.imread(str(path)) for path in sorted((made / "photos").glob("*.jpg"))])
    (made / "recorded").mkdir()
    record_tiny(made / "recorded").rename(made / "run.mcap")
    (made / "photo.jpg").write_bytes((made / "photos" / "0.jpg").read_bytes())
    (made / "people.json").write_text(json.dumps({"Bob": [[1.0] + [0.0] * 95]}))
    return made


PAGES = ("docs/python.md:", "docs/gpu.md:", "docs/robots.md:")
PAGE = [piece for piece in blocks("python") if piece.place.startswith(PAGES)]


@pytest.mark.parametrize("piece", PAGE, ids=str)
def test_a_block_runs_as_it_is(
    piece: Piece, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    if "import torch" in piece.text:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
    if "import rclpy" in piece.text:
        pytest.skip("spins for ever; tests/integration/test_ros2_node.py has the node")
    exec(compile(piece.text, piece.place, "exec"), {"__name__": "__main__"})
    if "print(" in piece.text:
        assert capsys.readouterr().out
