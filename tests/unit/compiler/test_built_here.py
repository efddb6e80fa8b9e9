"""``tensorrt-dla`` in a pipeline file: built in the cache on a board that has a DLA; on the recording double."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgert.assemble import Environment
from edgert.backend.ort import Function
from edgert.bundle.bundle import open_bundle
from edgert.compiler.unpack import Unpacked, built_here
from edgert.config import load_pipeline
from edgert.pipeline import pipeline_in
from edgert.reporter import Progress
from edgert.runtime import Summary
from tests.helpers.small_pipeline import TEXT, network, small_pipeline
from tests.helpers.trt_bench import HERE, ORIN, Bench

CHAIN = "engines: [tensorrt-dla, onnxruntime]\n"
RUNS = TEXT.replace("precision: int8", "precision: int8\n    placement: dla").replace(
    "source: api", 'source: "synthetic:noise", size: 64x48, limit: 2'
)
SHAPE = (1, 3, 16, 16)


def board() -> Bench:
    """An Orin whose engines compute what the model does."""
    function = Function(network(SHAPE))

    def compute(addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
        given = made.device.array(addresses["x"], "float32", SHAPE)
        made.device.array(addresses["mean"], "float32", (1, 4, 1, 1))[...] = function({"x": given})["mean"]

    bound = {"x": (SHAPE, "FLOAT", "INPUT"), "mean": ((1, 4, 1, 1), "FLOAT", "OUTPUT")}
    made = Bench(bound=bound, compute=compute)
    return made


pytestmark = pytest.mark.usefixtures("own_cache")


def run(path: Path, on: Bench) -> tuple[Unpacked, Summary, list[Progress]]:
    """Runs a pipeline file as ``edgert run`` does on an Orin."""
    events: list[Progress] = []
    with built_here(load_pipeline(path), machine=ORIN, trt=on.backend, on_progress=events.append) as found:
        assert found is not None and found.file.document.path == path
        assert found.file.config.models["parts"].onnx.name == "ort.onnx"
        with pipeline_in(Environment(engines=found.engines), found.file) as pipeline:
            return found, pipeline.run(), events


def test_the_first_run_builds_and_the_second_finds(tmp_path: Path) -> None:
    path = small_pipeline(tmp_path / "files", CHAIN + RUNS)
    on = board()
    found, summary, events = run(path, on)
    assert (found.engine, found.manifest.board, found.manifest.mode) == ("tensorrt-dla", "orin-nx-16gb", "15W")
    assert summary.frames_out == 2 and summary.engine["parts"]["engine"] == "tensorrt-dla"
    assert set(on.requests[0].placement.values()) == {"dla0"}
    assert {"calibrate", "place"} <= {one.step for one in events if one.state == "done"}
    (kept,) = (tmp_path / "cache" / "here").iterdir()
    with open_bundle(kept) as bundle:
        planned, *_ = json.loads(bundle.read("models/parts/placement.json"))["engines"]
    assert planned["input"].startswith("input 'x' in DLA_HWC4 int8: convolution")
    assert on.requests[0].formats["x"].layout == "DLA_HWC4"
    _, _, again = run(path, board())
    assert [one.step for one in again if one.state == "done" and one.step not in ("compile", "check")] == []


@pytest.mark.parametrize("chain", ["", "engines: [onnxruntime]\n"])
def test_a_pipeline_that_asks_for_no_dla_runs_as_it_stands(tmp_path: Path, chain: str) -> None:
    file = load_pipeline(small_pipeline(tmp_path, chain + RUNS))
    with built_here(file, machine=ORIN, trt=Bench().backend) as found:
        assert found is None


def test_so_does_one_on_a_machine_without_a_dla(tmp_path: Path) -> None:
    file = load_pipeline(small_pipeline(tmp_path, CHAIN + RUNS))
    with built_here(file, machine=HERE, trt=Bench(machine=HERE).backend) as found:
        assert found is None and not (tmp_path / "cache").exists()


def test_a_power_mode_of_the_users_own_is_planned_as_the_usual_one(tmp_path: Path) -> None:
    path, on = small_pipeline(tmp_path / "files", CHAIN + RUNS), board()
    machine = replace(ORIN, mode="MY_OWN")
    with built_here(load_pipeline(path), machine=machine, trt=on.backend) as found:
        assert found is not None and ORIN.board is not None
        assert found.manifest.mode == ORIN.board.usual_mode.name
