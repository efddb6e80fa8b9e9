"""Placements carried out: the same answers whole, split and replicated, on cores of this machine."""

import os
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert.assemble import Environment, assemble
from edgert.backend import EngineOptions
from edgert.backend.ort import OrtBackend, OrtEngine
from edgert.board import host
from edgert.board.host import core_accelerators
from edgert.config import load_pipeline
from edgert.errors import BuildError, ConfigError, EdgertError, PlacementError
from edgert.graph import clean, load, read
from edgert.installation import demo_images
from edgert.placement.cutting import partition
from edgert.placement.segment_engines import Chain, SegmentedEngine, compile_segments
from edgert.runtime import Result, Runner
from edgert.stages import infer
from edgert.validation import validate
from tests.helpers.command import ROOT
from tests.helpers.errors import raises
from tests.helpers.evaluation_data import data

ASSETS = ROOT / "pipelines" / "assets"
MODELS = {
    "squeezenet_fp32": (1, 3, 224, 224),
    "mobilenet_v1_025_224": (1, 3, 224, 224),
    "mobilenet_v2_quant": (1, 3, 224, 224),
    "nanodet_m_320": (1, 3, 320, 320),
    "ultraface_rfb_320": (1, 3, 240, 320),
}
TOLERANCE = 1e-4
"""Of the largest value. ONNX Runtime adds in another order where a layer can no longer fuse with the next."""

two_cores = pytest.mark.skipif(len(core_accelerators()) < 2, reason="this process may use one core only")
one_core = pytest.mark.skipif(not core_accelerators(), reason="this system cannot pin a thread to a core")


def split_engine(path: Path, *ends: float) -> SegmentedEngine:
    """Cut behind these parts of the nodes, on cpu0 and cpu1 by turns."""
    ready = clean(load(path))[0]
    graph = read(ready)
    count = len(graph.nodes)
    places = {node.name: f"cpu{sum(n >= end * count for end in ends) % 2}" for n, node in enumerate(graph.nodes)}
    return compile_segments(ready, graph, partition(graph, places), None)


def run(chain: Chain, slot: int, name: str, image: Any) -> list[Any]:
    chain.tensors(slot)[name][...] = image
    for segment in range(chain.segments):
        chain.run(segment, slot)
    return [output.copy() for output in chain.outputs(slot)]


@pytest.mark.parametrize("ends", [(0.5,), (0.1,), (0.3, 0.6)])
@pytest.mark.parametrize("name", MODELS)
def test_a_split_model_says_what_the_whole_says(name: str, ends: tuple[float, ...]) -> None:
    path = data("models", f"{name}.onnx")
    session = OrtBackend().compile(load(path), EngineOptions(threads=1)).session()
    engine = split_engine(path, *ends)
    chain = engine.chain(1)
    assert chain.segments >= 2 and chain.slots == 1 + 2 * (chain.segments - 1)
    (tensor,) = engine.inputs
    random = np.random.default_rng(0)
    for slot in range(chain.slots):
        image = random.random(MODELS[name], np.float32)
        session.inputs[tensor.name][...] = image
        expected = session.run()
        for one, other in zip(expected, run(chain, slot, tensor.name, image), strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            assert np.abs(one - other).max() <= TOLERANCE * max(1.0, float(np.abs(one).max()))


def test_tensors_are_handed_on_in_place_and_each_frame_uses_the_same() -> None:
    engine = split_engine(ASSETS / "parts.onnx", 0.5)
    chain = engine.chain(1)
    transition = set(engine.segments[0].outputs).intersection(engine.segments[1].inputs)
    assert transition
    for name in transition:  # every slot has its own
        assert len({chain.tensors(slot)[name].ctypes.data for slot in range(chain.slots)}) == chain.slots
    (tensor,) = engine.inputs
    assert len({chain.tensors(slot)[tensor.name].ctypes.data for slot in range(chain.slots)}) == 1

    def places() -> list[int]:
        tensors = [chain.tensors(slot)[name] for slot in range(chain.slots) for name in sorted(transition)]
        outputs = [output for slot in range(chain.slots) for output in chain.outputs(slot)]
        return [array.ctypes.data for array in (*tensors, *outputs)]

    before = places()
    for _ in range(3):
        for slot in range(chain.slots):
            chain.run(0, slot)
            between = [chain.tensors(slot)[name].copy() for name in sorted(transition)]
            chain.run(1, slot)
            after = [chain.tensors(slot)[name] for name in sorted(transition)]
            assert all(map(np.array_equal, between, after))
    assert places() == before


def write(folder: Path, placement: str, source: str = "", every: int = 1, extra: str = "") -> Path:
    source = source or '{source: "' + demo_images() + '", size: 320x240, fps: 30, seed: 3, limit: 40}'
    path = folder / "p.yaml"
    path.write_text(
        f"models:\n  parts:\n    onnx: {ASSETS}/parts.onnx\n"
        f"    task: {{detect: yolox, labels: {ASSETS}/parts.txt}}\n    input: {{std: 255}}\n"
        f"    precision: fp32\n    placement: {placement}\n{extra}"
        f"stages:\n  belt: {source}\n  find: {{infer: parts, from: belt, every: {every}}}\n"
        "  end: {sink: callback, from: find}\n"
    )
    return path


def results(path: Path) -> tuple[list[Result], Runner]:
    seen: list[Result] = []
    assembly = assemble(load_pipeline(path), Environment(callbacks={"end": seen.append}))
    runner = Runner(assembly.tasks)
    runner.start()
    runner.wait(60)
    assembly.close()
    return seen, runner


EARLY = '{"*": cpu1, "/stem/*": cpu0}'
LATE = '{"*": cpu0, "/head*": cpu1}'


@pytest.fixture(scope="module")
def unplaced(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Result]]:
    """What a pipeline on one core says; every how many frames it is asked."""
    return cache(lambda every: results(write(tmp_path_factory.mktemp("unplaced"), "cpu0", every=every))[0])


@two_cores
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    "placement", ["cpu1", "{replicate: [cpu0, cpu1]}", "{replicate: {cpu0: 2, cpu1: 1}}", EARLY, LATE]
)
def test_a_pipeline_says_the_same_however_it_is_placed(
    tmp_path: Path, unplaced: Callable[[int], list[Result]], placement: str, every: int
) -> None:
    expected = unplaced(every)
    found, _ = results(write(tmp_path, placement, every=every))
    assert [r.frame.index for r in found] == [r.frame.index for r in expected] == list(range(40))
    assert any(len(r.detections) for r in expected)
    for one, other in zip(expected, found, strict=True):
        assert list(one.outputs) == list(other.outputs)
        assert ("find" in one.outputs) == (one.frame.index % every == 0)
        assert one.detections.classes.tolist() == other.detections.classes.tolist()
        np.testing.assert_allclose(one.detections.scores, other.detections.scores, atol=1e-4)
        np.testing.assert_allclose(one.detections.boxes, other.detections.boxes, atol=1e-2)


@two_cores
@pytest.mark.parametrize("placement", ["cpu1", "{replicate: [cpu0, cpu1]}", LATE])
def test_every_part_runs_on_its_core(tmp_path: Path, placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: dict[str, set[int]] = {}
    real = host.pin

    def pin(core: int) -> frozenset[int]:
        before = real(core)
        pinned[threading.current_thread().name] = set(os.sched_getaffinity(0))
        return before

    monkeypatch.setattr(infer, "pin", pin)
    before = os.sched_getaffinity(0)
    results(write(tmp_path, placement))
    cores = core_accelerators()
    if placement == "cpu1":
        assert pinned == {"edgert:find": {cores["cpu1"]}}
    elif placement == LATE:
        first, second = {cores["cpu0"]}, {cores["cpu1"]}  # nodes behind the head are not called so: back to cpu0
        assert pinned == {"edgert:find:0": first, "edgert:find:1": second, "edgert:find": first}
    else:
        assert pinned == {"edgert:find:0": {cores["cpu0"]}, "edgert:find:1": {cores["cpu1"]}}
    assert os.sched_getaffinity(0) == before


@pytest.mark.timing
@two_cores
@pytest.mark.parametrize("placement", ["{replicate: [cpu0, cpu1]}", LATE])
def test_a_placed_pipeline_stops_in_time(tmp_path: Path, placement: str) -> None:
    endless = '{source: "' + demo_images() + '", size: 320x240, seed: 3, limit: 1000000}'
    with edgert.Pipeline(write(tmp_path, placement, endless), callbacks={"end": lambda result: None}) as pipeline:
        results = pipeline.results("find", timeout=20)
        first = [next(results).frame.index for _ in range(20)]
        started = time.monotonic()
    assert first == sorted(first)
    assert time.monotonic() - started < 2.5
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("edgert:")]


@two_cores
def test_an_error_in_a_segment_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, inputs: Any, outputs: Any) -> Any:
        def run() -> None:
            raise BuildError("ONNX Runtime failed while running", why="out of luck", where=self.path)

        return run

    monkeypatch.setattr(OrtEngine, "bind", broken)
    with raises(BuildError, where=("parts.onnx, segment", "on cpu")):
        results(write(tmp_path, LATE))


@one_core
@pytest.mark.parametrize(
    ("placement", "says"),
    [
        ("cpu99", "no accelerator 'cpu99'"),
        ("gpu", "no gpu"),
        ("{replicate: [cpu0, dla0]}", "no dla0"),
        ('{"*": cpu0, "/stemm/*": cpu0}', "matches no node"),
        ('{"*": cpu0, "/stem/*": cpu99}', "no accelerator 'cpu99'"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_its_line(tmp_path: Path, placement: str, says: str) -> None:
    for check in (validate, lambda path: assemble(load_pipeline(path))):
        with raises(PlacementError, says, where="p.yaml:7 models.parts.placement", fix=True):
            check(write(tmp_path, placement))


@pytest.mark.parametrize("placement", ["gqu", "{replicate: {cpu0: 0}}", "{replicate: {}}", '{"*": auto}', "{}"])
def test_what_is_no_placement_is_refused_by_the_file(tmp_path: Path, placement: str) -> None:
    with raises(ConfigError, where="models.parts.placement"):
        load_pipeline(write(tmp_path, placement))


def test_a_file_for_another_board_can_be_validated_here(tmp_path: Path) -> None:
    path = write(tmp_path, "dla0")
    path.write_text("board: orin-nx-16gb\n" + path.read_text().replace("sink: callback", "sink: null"))
    validate(path)
    path.write_text(path.read_text().replace("dla0", '{"*": gpu, "/nothing/*": dla0}'))
    with pytest.raises(PlacementError, match="matches no node"):
        validate(path)


@two_cores
def test_a_split_model_cannot_look_at_crops(tmp_path: Path) -> None:
    path = write(tmp_path, LATE)
    text = path.read_text().replace("callback, from: find", "callback, from: read")
    path.write_text(text.replace("  end:", "  read: {infer: parts, from: find, crop: {limit: 2}}\n  end:"))
    with pytest.raises(EdgertError, match="crops"):
        assemble(load_pipeline(path))


@two_cores
def test_crops_can_be_dealt_to_several_cores(tmp_path: Path) -> None:
    path = write(tmp_path, "{replicate: [cpu0, cpu1]}")
    text = path.read_text().replace("callback, from: find", "callback, from: read")
    path.write_text(text.replace("  end:", "  read: {infer: parts, from: find, crop: {limit: 2}}\n  end:"))
    found, _ = results(path)
    assert [r.frame.index for r in found] == list(range(40))
    assert all(list(r.outputs) == ["find", "read"] for r in found)
