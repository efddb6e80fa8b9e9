"""A board emulated on this machine: paced, governed and labeled; and simulations against runs paced like that.

The engines compute nothing here, so that a busy machine is fast enough.
"""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from edgert.assemble import Environment, assemble
from edgert.config import PipelineFile, load_pipeline
from edgert.emulation import Emulation, emulate
from edgert.errors import ConfigError
from edgert.pipeline import Pipeline, pipeline_in
from edgert.planner import plan
from edgert.planner.simulation import Scenario, simulate
from edgert.runtime import Summary
from edgert.simulator import Simulated
from tests.helpers.gpu_pipeline import CalledRig, Engines
from tests.unit.planner.test_fallback_levels import network

ORIN, MODE = "orin-nx-16gb", "10W"
XAVIER, XAVIER_MODE = "xavier-nx-8gb", "MODE_15W_2CORE"
SECONDS = 2.0  # of the board
NEAR = 0.05
Section = dict[str, object]
ASSETS = Path(__file__).parents[2] / "pipelines" / "assets"
BOXES = """
import numpy as np
from edgert.runtime import Detections, Result

def four(result: Result) -> Result:
    places = np.array([[20, 20, 180, 150], [300, 40, 460, 170], [60, 250, 220, 380], [400, 300, 560, 430]], np.float32)
    return result.with_output("boxes", Detections(places, np.full(4, 0.9, np.float32), np.zeros(4, np.int32)))
"""


def pipeline(
    folder: Path, fps: float, stages: Section, more: Section | None = None, seconds: float = SECONDS
) -> PipelineFile:
    (folder / "boxes.py").write_text(BOXES, encoding="utf-8")
    network(folder / "open.onnx", rows="n")
    computes_nothing = {"backend": "null", "precision": "fp32"}
    models = {
        "parts": {"onnx": str(ASSETS / "parts.onnx"), "task": {"detect": "yolox"}, **computes_nothing},
        "open": {"onnx": "open.onnx", "task": {"segment": "argmax"}, **computes_nothing},
    }
    camera = {"source": "synthetic:noise", "size": "640x480", "realtime": True, "fps": fps}
    camera["limit"] = round(fps * seconds)
    config = {"models": models, "stages": {"camera": camera, **stages}, **(more or {})}
    (folder / "p.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return load_pipeline(folder / "p.yaml")


def paced(file: PipelineFile, pace: float = 0.0) -> tuple[Summary, Emulation]:
    place = emulate(file, ORIN, MODE, pace=pace)
    with pipeline_in(place.environment, place.file) as running:
        return running.run(), place


FIND = {"find": {"infer": "parts", "from": "camera"}}
END = {"sink": "null", "from": "find"}
YARD: Section = {"source": "synthetic:noise", "size": "640x480", "realtime": True, "fps": 47, "limit": 94}
CASES: dict[str, tuple[float, Section]] = {
    "easy": (60.0, {**FIND, "end": END}),
    "overload": (900.0, {**FIND, "end": END}),
    "cascade": (
        60.0,
        {
            **FIND,
            "boxes": {"python": "boxes:four", "from": "find"},
            "read": {"infer": "parts", "from": "boxes", "crop": {"limit": 4}},
            "end": {"sink": "null", "from": "read"},
        },
    ),
    "branching": (
        100.0,
        {**FIND, "look": {"infer": "parts", "from": "camera"}, "end": {"sink": "null", "from": ["find", "look"]}},
    ),
    "every third": (90.0, {"find": {"infer": "parts", "from": "camera", "every": 3}, "end": END}),
    "two cameras": (150.0, {"yard": YARD, "find": {"infer": "parts", "from": ["camera", "yard"]}, "end": END}),
    "batches": (
        233.0,  # so that nothing comes just when something else ends, which may be either first
        {
            "yard": YARD,
            "find": {"infer": "open", "from": ["camera", "yard"], "batch": {"max": 4, "wait": "20ms"}},
            "end": END,
        },
    ),
    "drawn and written": (
        60.0,
        {
            **FIND,
            "paint": {"draw": ["boxes", "labels"], "from": "find"},
            "images": {"sink": "images", "from": "paint", "path": "out", "every": 10},
            "end": END,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_simulation_and_a_paced_run_agree(tmp_path: Path, name: str) -> None:
    file = pipeline(tmp_path, *CASES[name])
    played = simulate(file, board=ORIN, mode=MODE, scenario=Scenario(seconds=SECONDS)).played
    real, place = paced(file)
    assert values(real) == pytest.approx(values(played), rel=NEAR)
    assert real.dropped == pytest.approx(played.dropped, abs=1)
    assert place.report(real)["figures"]["power_w"] == pytest.approx(played.power_w, rel=NEAR)


def values(run: Summary | Simulated) -> tuple[float, float, float]:
    return run.fps, run.latency_ms.p50, run.latency_ms.p99


def test_every_output_says_that_it_is_simulated(tmp_path: Path) -> None:
    stages = {
        **FIND,
        "lines": {"sink": "jsonl", "from": "find", "path": str(tmp_path / "out.jsonl")},
        "images": {"sink": "images", "from": "camera", "path": str(tmp_path / "out"), "every": 10},
    }
    summary, place = paced(pipeline(tmp_path, 60.0, stages))
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines and all("Orin NX 16GB in 10W" in json.loads(line)["outputs"]["simulated"] for line in lines)
    assert "simulated" in summary.engine["parts"] and place.report(summary)["simulated"] == place.environment.label
    first = cv2.imread(str(sorted((tmp_path / "out").iterdir())[0]))
    foot = first[-10:, :100]
    assert (foot.max(axis=(1, 2)) < 255).any() or foot.std() < first[:100].std()  # a box over the noise


def test_power_and_heat_are_the_boards(tmp_path: Path) -> None:
    summary, place = paced(pipeline(tmp_path, 100.0, {**FIND, "end": END}))
    report = place.report(summary)
    played = simulate(
        pipeline(tmp_path, 100.0, {**FIND, "end": END}), board=ORIN, mode=MODE, scenario=Scenario(seconds=SECONDS)
    ).played
    assert report["figures"]["power_w"] == pytest.approx(played.power_w, rel=0.1)
    assert 25 < report["temperature_c"] < 95


def test_a_budget_of_power_is_kept_by_what_the_board_would_draw(tmp_path: Path) -> None:
    stages = {**FIND, "end": END}
    played = simulate(pipeline(tmp_path, 200.0, stages), board=ORIN, mode=MODE).played
    idle = simulate(pipeline(tmp_path, 5.0, stages), board=ORIN, mode=MODE).played
    assert played.power_w is not None and idle.power_w is not None
    cap_w = 0.4 * idle.power_w + 0.6 * played.power_w
    budgets = {"budgets": {"power": f"{cap_w:.2f}W", "when_exceeded": "degrade"}}
    summary, place = paced(pipeline(tmp_path, 200.0, stages, budgets, seconds=5.0))
    assert summary.budgets["throttled"] > 0
    assert place.report(summary)["figures"]["power_w"] < played.power_w


def test_a_program_that_submits_frames_sees_the_boards_latency(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        f"""
models: {{parts: {{onnx: {ASSETS}/parts.onnx, task: {{detect: yolox}}, backend: 'null', precision: fp32}}}}
stages:
  camera: {{source: api}}
  find: {{infer: parts, from: camera}}
  end: {{sink: 'null', from: find}}
""",
        encoding="utf-8",
    )
    file, image = load_pipeline(tmp_path / "p.yaml"), np.zeros((480, 640, 3), np.uint8)
    planned = plan(file, board=ORIN, mode=MODE).boards[0].rows[0]
    place = emulate(file, ORIN, MODE)
    with pipeline_in(place.environment, place.file) as called:
        for _ in range(10):
            called(image)
        assert called.summary().latency_ms.p50 == pytest.approx(planned.p50_ms, rel=NEAR)
    place = emulate(file, ORIN, MODE)
    with pipeline_in(place.environment, place.file) as running:
        results = running.results("find", timeout=10)
        for _ in range(10):
            running.submit(image)
            next(results)
        assert running.summary().latency_ms.p50 == pytest.approx(planned.p50_ms, rel=2 * NEAR)


def test_a_video_file_comes_at_its_rate_and_takes_the_boards_decoder(tmp_path: Path) -> None:
    (tmp_path / "write.yaml").write_text(
        "stages:\n"
        "  camera: {source: 'synthetic:noise', size: 640x480, fps: 30, limit: 60}\n"
        f"  video: {{sink: video, from: camera, path: {tmp_path}/v.mp4}}\n",
        encoding="utf-8",
    )
    with Pipeline(tmp_path / "write.yaml") as writing:
        writing.run()
    file = pipeline(tmp_path, 30.0, {**FIND, "end": END})
    stages = dict(file.config.stages)
    named = {"source": str(tmp_path / "v.mp4"), "size": None, "realtime": None}
    stages["camera"] = stages["camera"].model_copy(update=named)
    file = PipelineFile(file.config.model_copy(update={"stages": stages}), file.document)
    played = simulate(file, board=ORIN, mode=MODE, scenario=Scenario(seconds=SECONDS)).figures
    summary, place = paced(file)
    figures = place.report(summary)["figures"]
    assert figures["busy"] == pytest.approx(played["busy"], rel=NEAR) and figures["busy"]["nvdec"] > 0
    for name in ("fps", "p50_ms", "p99_ms", "power_w"):
        assert figures[name] == pytest.approx(played[name], rel=NEAR)


def test_budgets_of_processor_time_and_memory_are_not_those_of_this_machine(tmp_path: Path) -> None:
    """What this process takes is no concern of the board's: a plan says what its memory holds."""
    budgets = {"budgets": {"cpu": 0.001, "memory": "500MiB", "when_exceeded": "stop"}}
    file = pipeline(tmp_path, 60.0, {**FIND, "end": END}, budgets)
    summary, place = paced(file)
    assert summary.frames_out == 60.0 * SECONDS and "budgets.cpu" in " ".join(place.notes)
    report = place.report(summary)
    used = {check["name"]: check["used"] for check in report["figures"]["checks"]}
    assert used["memory"] == pytest.approx(report["figures"]["memory_bytes"] / (500 * 2**20))
    played = simulate(file, board=ORIN, mode=MODE, scenario=Scenario(seconds=SECONDS))
    assert played.verdict == report["verdict"] and "budgets.cpu" in " ".join(played.notes)


def test_a_board_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = pipeline(tmp_path, 30.0, {**FIND, "end": END})
    with pytest.raises(ConfigError, match="orin-nx-16gb"):
        emulate(file, "orin-nx-16g")
    with pytest.raises(ConfigError, match="16W"):
        emulate(file, ORIN, "16W")


def test_models_on_a_gpu_read_frames_on_the_host_where_a_board_is_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = CalledRig(tmp_path, monkeypatch)
    for on_host in (False, True):
        environment = Environment(engines=Engines(rig.device), on_host=on_host)
        made = assemble(load_pipeline(rig.path), environment=environment)
        assert bool(made.inferences) != on_host
        made.close()


def test_the_governor_moves_the_work_to_the_boards_dla(tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    model = {"onnx": "net.onnx", "task": {"segment": "argmax"}, "backend": "null", "precision": "fp16"}
    models = {
        "parts": {**model, "placement": "gpu", "degrade_to": "parts-dla"},
        "parts-dla": {**model, "placement": "dla0"},
    }
    file = pipeline(tmp_path, 60.0, {**FIND, "end": END}, {"models": models, "budgets": {"when_exceeded": "degrade"}})
    gpu_w, dla_w = (step.power_w for step in emulate(file, XAVIER, XAVIER_MODE).environment.predicted)
    assert dla_w < gpu_w
    budgets = {"power": f"{0.9 * gpu_w + 0.1 * dla_w:.3f}W", "when_exceeded": "degrade"}
    file = pipeline(tmp_path, 60.0, {**FIND, "end": END}, {"models": models, "budgets": budgets})
    place = emulate(file, XAVIER, XAVIER_MODE, pace=0)
    with pipeline_in(place.environment, place.file) as running:
        summary = running.run()
    assert summary.frames_out >= 0.9 * 60.0 * SECONDS
    assert list(summary.to_json()["budgets"]["governor"]["seconds"]) == ["all frames, with parts-dla"]
    busy = place.report(summary)["figures"]["busy"]
    assert busy["dla0"] > busy.get("gpu", 0.0)
