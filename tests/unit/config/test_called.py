"""Which pipelines can be called frame by frame."""

from pathlib import Path

import pytest

from edgert.config import load_pipeline
from edgert.config.flow import why_not_called


def reason(folder: Path, stages: str, *pinned: str) -> tuple[str, str]:
    file = folder / "p.yaml"
    file.write_text(f"models:\n  m: {{onnx: m.onnx, task: {{detect: yolox}}}}\nstages:\n{stages}")
    return why_not_called(load_pipeline(file).config.stages, pinned)


ONE = "  cam: {source: api}\n  find: {infer: m, from: cam}\n"


@pytest.mark.parametrize(
    "stages",
    [
        ONE,
        ONE + "  track: {track: bytetrack, from: find}\n  out: {sink: 'null', from: track, drop: oldest}\n",
        ONE + "  look: {infer: m, from: find, crop: {limit: 2}}\n",
        ONE + "  cut: {crop: [0, 0, 0.5, 0.5], from: cam}\n  part: {infer: m, from: cut}\n",
        "  cam: {source: api, limit: 5, queue: 1}\n  find: {infer: m, from: cam, every: 3, batch: {max: 4}}\n",
    ],
)
def test_these_can(tmp_path: Path, stages: str) -> None:
    assert reason(tmp_path, stages) == ("", "")


@pytest.mark.parametrize(
    ("stages", "why", "fix"),
    [
        ("  cam: {source: a.mp4}\n  find: {infer: m, from: cam}\n", "'cam' brings its own frames", "results(…)"),
        (ONE + "  film: {source: 'rtsp://u:secret@h/1'}\n", "'film' brings its own frames", "source: api"),
        (ONE + "  two: {source: api}\n", "2 sources", "one pipeline for each"),
        ("  cam: {source: api, fps: 5}\n  find: {infer: m, from: cam}\n", "'cam' leaves frames out", "fps:"),
        (ONE + "  cut: {crop: {limit: 3}, from: find}\n", "'cut' makes several frames", "infer: …, crop:"),
    ],
)
def test_these_cannot_and_the_reason_names_what_to_change(tmp_path: Path, stages: str, why: str, fix: str) -> None:
    found = reason(tmp_path, stages)
    assert why in found[0] and fix in found[1] and "secret" not in found[0]


def test_a_model_on_a_core_of_its_own(tmp_path: Path) -> None:
    why, fix = reason(tmp_path, ONE, "find")
    assert why.startswith("the model of 'find' is placed on cores") and "placement: auto" in fix
