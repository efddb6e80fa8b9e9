"""A batch shares launches and weights: a plan with one has room for more, and needs memory for its tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgert.config import load_pipeline
from edgert.graph import to_bytes
from edgert.placement.plan_record import Row
from edgert.planner import plan
from edgert.planner.planning import frames_of
from tests.helpers.models import make

CAMERAS = 4


def write(folder: Path, batch: int | str, how: str, cameras: int = CAMERAS) -> Path:
    """A small network of twelve layers behind some cameras; ``batch`` is its first dimension."""
    random, nodes, weights, last = np.random.default_rng(0), [], {}, "x"
    for layer in range(12):
        weights[f"w{layer}"] = random.normal(0, 0.05, (32, 32 if layer else 3, 3, 3)).astype(np.float32)
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"t{layer}"], name=f"c{layer}", pads=[1] * 4))
        last = f"t{layer}"
    shapes = {side: ((batch, depth, 32, 32), TensorProto.FLOAT) for side, depth in (("x", 3), (last, 32))}
    (folder / "net.onnx").write_bytes(to_bytes(make(nodes, {"x": shapes["x"]}, {last: shapes[last]}, weights)))
    names = [f"cam{number}" for number in range(cameras)]
    sources = "\n".join(f"  {name}: {{source: 'usb:{number}', fps: 30}}" for number, name in enumerate(names))
    text = f"""
board: orin-nx-16gb
models: {{net: {{onnx: net.onnx, task: {{embed: none}}, precision: fp16}}}}
stages:
{sources}
  look: {{infer: net, from: [{", ".join(names)}]{how}}}
"""
    (folder / "p.yaml").write_text(text)
    return folder / "p.yaml"


def gpu_row(path: Path) -> Row:
    (board,) = plan(load_pipeline(path), mode="15W").boards
    return next(row for row in board.rows if row.name == "gpu")


def test_a_batch_leaves_room_for_more_frames(tmp_path: Path) -> None:
    single = gpu_row(write(tmp_path, "N", ""))
    together = gpu_row(write(tmp_path, "N", ", batch: {max: 4, wait: 5ms}"))
    assert together.most_fps > single.most_fps  # a thread brings every frame to the engine by itself
    assert 1.3 * together.busy["gpu"] < single.busy["gpu"]
    activations = {
        row: sum(part.size_bytes for part in row.memory if part.kind == "activations") for row in (single, together)
    }
    assert activations[together] > 3 * activations[single]


def test_a_model_with_one_row_gains_nothing_from_a_batch(tmp_path: Path) -> None:
    single = gpu_row(write(tmp_path, 1, ""))
    requested = gpu_row(write(tmp_path, 1, ", batch: {max: 4, wait: 5ms}"))
    assert requested.models[0].latency_ms == pytest.approx(single.models[0].latency_ms)


@pytest.mark.parametrize(
    ("batch", "how", "cameras", "frames"),
    [
        ("N", "", 4, 1),
        ("N", ", batch: {max: 8, wait: 5ms}", 4, 4),
        ("N", ", batch: {max: 2, wait: 5ms}", 4, 2),
        (2, ", batch: {max: 4, wait: 5ms}", 4, 2),
        ("N", ", batch: {max: 4, wait: 5ms}", 1, 1),
    ],
)
def test_frames_of_a_run(tmp_path: Path, batch: int | str, how: str, cameras: int, frames: int) -> None:
    file = load_pipeline(write(tmp_path, batch, how, cameras))
    assert frames_of(file.config, "net") == frames
