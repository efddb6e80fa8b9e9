"""The last step of a build, on the board: what is compiled, checked, kept, packed and said; on the recording double."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgert.backend.chain import Skipped
from edgert.backend.tensorrt.build_process import CompileError
from edgert.bundle.bundle import open_bundle
from edgert.compiler.finish import Finished, finish
from edgert.errors import ArtifactError, BuildError, DeviceError, PlacementError
from edgert.files import FileStore
from edgert.graph import from_bytes, inputs, to_bytes
from edgert.reporter import Progress
from tests.helpers import models, trt_bundle as trt_bundle_module
from tests.helpers.trt_bench import HERE, ORIN, Bench
from tests.helpers.trt_bundle import SPLIT, bench, engine, trt_bundle

AS_PLANNED: dict[str, Any] = {"answer": {"inspector": json.dumps({"Layers": [
    {"Name": "{ForeignNode[conv]}", "LayerType": "DLA", "Metadata": "[ONNX Layer: conv]"},
    {"Name": "relu", "LayerType": "PointWiseV2", "Metadata": "[ONNX Layer: relu]"},
]})}}  # fmt: skip
MOVED: dict[str, Any] = {"answer": {"inspector": json.dumps({"Layers": [
    {"Name": "conv + relu", "LayerType": "CaskConvolution", "Metadata": "[ONNX Layer: conv]\x1e[ONNX Layer: relu]"},
]})}}  # fmt: skip


pytestmark = pytest.mark.usefixtures("own_cache")


class Board:
    """A board with a cache of its own; ``events`` is the progress of the last call."""

    def __init__(self, folder: Path) -> None:
        self.store = FileStore(folder / "store")
        self.events: list[Progress] = []

    def finish(self, bundle: Path, output: Path | None = None, *, on: Bench, **options: Any) -> Finished:
        self.events.clear()
        given = {"machine": ORIN, "trt": on.backend, "store": self.store, "on_progress": self.events.append}
        return finish(bundle, output, **{**given, **options})

    def progress_of(self, *states: str) -> list[str]:
        return [f"{one.step} {one.state}: {one.detail}" for one in self.events if one.state in states]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_a_placement_is_compiled_checked_and_timed(board: Board, tmp_path: Path) -> None:
    on = bench(**AS_PLANNED)
    done = board.finish(trt_bundle(tmp_path / "dock.edgert"), on=on)
    (request,) = on.requests
    assert (
        dict(request.placement) == {"conv": "dla0"} and request.precision == "int8" and request.fp16_nodes == ("relu",)
    )
    assert request.calibration.startswith("TRT-100300-EntropyCalibration2") and not request.explicit
    assert done.engines == {"parts": "tensorrt-dla"} and done.skipped == () and done.path is None
    compiled, checked = board.progress_of("done")
    assert compiled.startswith("compile done: TensorRT 10.3.0")
    assert "placed as planned, relative error" in checked and checked.endswith(" ms")
    assert on.device.live_bytes == 0


def test_the_second_time_nothing_is_done(board: Board, tmp_path: Path) -> None:
    bundle = trt_bundle(tmp_path / "dock.edgert")
    board.finish(bundle, on=bench(**AS_PLANNED))
    again = bench(**AS_PLANNED)
    board.finish(bundle, on=again)
    assert again.requests == [] and [one.state for one in board.events if one.state != "started"] == ["cached"] * 2


def test_engines_logs_and_profiles_are_packed_and_found_on_that_machine_alone(board: Board, tmp_path: Path) -> None:
    bundle, packed = trt_bundle(tmp_path / "dock.edgert"), tmp_path / "out.edgert"
    done = board.finish(bundle, packed, on=bench(**AS_PLANNED))
    assert done.written and done.target.startswith("orin-nx-16gb-10.3.0-")
    with open_bundle(packed) as opened:
        (entry,) = opened.manifest.compiled[done.target].engines["parts"]
        record, checks = json.loads(opened.read(entry.record)), json.loads(opened.read(entry.checks))
        assert opened.read(entry.plan) == b"plan" and record["power_mode"] == "15W"
        assert record["result"]["inspector"] and isinstance(record["result"]["log"], list)
        assert checks["profile"]["runs"] == 30 and checks["placement"]["source"] == "inspector"
        assert checks["placement"]["nodes"] == {
            "dla0": {"planned": 1, "actual": 1},
            "gpu": {"planned": 1, "actual": 1},
        }
        assert checks["memory"] == {"plan_bytes": 4, "context_bytes": 2**20, "tensor_bytes": 2 * 4 * 3 * 8 * 8}
    fresh, same, other = Board(tmp_path / "other"), bench(**AS_PLANNED), bench(machine=replace(ORIN, mode="25W"))
    fresh.finish(packed, on=same)
    assert same.requests == [] and fresh.progress_of("cached")
    Board(tmp_path / "third").finish(packed, on=other, on_progress=(progress := list[Progress]()).append)
    assert other.requests == [] and "was compiled in power mode 15W and runs in 25W" in progress[1].detail
    assert progress[-1].state == "done"  # and timed again, at the clocks of now
    newer = bench(machine=replace(ORIN, l4t="36.5.0"), **AS_PLANNED)
    Board(tmp_path / "fourth").finish(packed, on=newer, on_progress=(progress := list[Progress]()).append)
    assert len(newer.requests) == 1 and "are not used: L4T 36.4.3 → 36.5.0" in progress[0].detail


def test_packing_again_replaces_this_machines_engines_and_keeps_others(board: Board, tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{name}.edgert" for name in ("one", "two", "three"))
    one = board.finish(trt_bundle(tmp_path / "dock.edgert"), first, on=bench(**AS_PLANNED))
    faster = bench(machine=replace(ORIN, mode="25W"), **AS_PLANNED)
    two = board.finish(first, second, on=faster)
    assert set(two.manifest.compiled) == {one.target, two.target} and faster.requests == []
    three = board.finish(second, third, on=bench(**AS_PLANNED))
    assert three.manifest == two.manifest and third.read_bytes() == second.read_bytes()


def test_what_runs_elsewhere_than_planned_is_said_or_refused(board: Board, tmp_path: Path) -> None:
    bundle = trt_bundle(tmp_path / "dock.edgert")
    done = board.finish(bundle, on=bench(**MOVED))
    assert (
        done.engines == {"parts": "tensorrt-dla"} and "1 nodes elsewhere than planned" in board.progress_of("done")[1]
    )
    for there in (board, Board(tmp_path / "all")):  # the first has kept the engine and what was found of it
        with pytest.raises(PlacementError, match="1 of 2 nodes run elsewhere") as caught:
            there.finish(bundle, on=bench(**MOVED), strict=True)
        assert "without --strict" in caught.value.fix


def test_what_the_ladder_moved_off_the_dla_is_off_its_plan(board: Board, tmp_path: Path) -> None:
    """Nodes that could only be built on the GPU are not where the bundle placed them, though they were built so."""
    bundle, on = trt_bundle(tmp_path / "dock.edgert"), bench(**MOVED)
    on.failures = [CompileError("TensorRT built no engine", why="ForeignNode") for _ in range(3)]
    board.finish(bundle, on=on)
    assert (
        dict(on.requests[-1].placement)["conv"] == "gpu"
        and "1 nodes elsewhere than planned" in board.progress_of("done")[1]
    )
    with pytest.raises(PlacementError, match="'conv'"):
        board.finish(bundle, on=bench(**MOVED), strict=True)


def test_an_engine_that_computes_something_else_is_not_run(board: Board, tmp_path: Path) -> None:
    on = bench(error=1.5)
    done = board.finish(trt_bundle(tmp_path / "dock.edgert"), on=on)
    assert on.device.live_bytes == 0
    assert done.engines == {"parts": "onnxruntime"}
    assert all("outputs differ too much from the model" in one.why and "at most 0.7" in one.why for one in done.skipped)
    assert [one.engine for one in done.skipped] == ["tensorrt-dla", "tensorrt"]


def test_a_refused_model_goes_down_the_chain_and_strict_says_who_is_next(board: Board, tmp_path: Path) -> None:
    bundle = trt_bundle(tmp_path / "dock.edgert")
    on = bench(errors=[(0, "conv", "Conv", "Plugin not found")])
    done = board.finish(bundle, on=on)
    assert done.engines == {"parts": "onnxruntime"} and "'conv' (Conv, opset" in done.skipped[0].why
    assert "compile failed: TensorRT cannot parse node 'conv'" in board.progress_of("failed")[0]
    with pytest.raises(BuildError, match="cannot parse node 'conv'") as caught:
        board.finish(bundle, on=on, strict=True)
    assert caught.value.fix.endswith("the next possible engine is used: tensorrt, onnxruntime")


def test_out_of_memory_says_what_was_needed(board: Board, tmp_path: Path) -> None:
    said = [("ERROR", "Requested amount of GPU memory (2147483648 bytes) could not be allocated. Out of memory")]
    done = board.finish(trt_bundle(tmp_path / "dock.edgert"), on=bench(plan=None, lines=said))
    assert "ran out of memory" in done.skipped[0].why and "2.0 GiB were needed" in done.skipped[0].why
    assert "were free" in done.skipped[0].why


def test_missing_calibration_is_named(board: Board, tmp_path: Path) -> None:
    bundle = trt_bundle(tmp_path / "dock.edgert", drop=("cache",))
    done = board.finish(bundle, on=bench())
    assert done.engines == {"parts": "tensorrt"} and "has no scales for a DLA" in done.skipped[0].why
    assert "build it again" in done.skipped[0].why


def test_the_ladder_is_told(board: Board, tmp_path: Path) -> None:
    on = bench(**AS_PLANNED)
    on.failures = [CompileError("TensorRT built no engine", why="ForeignNode")]
    board.finish(trt_bundle(tmp_path / "dock.edgert"), on=on)
    assert board.progress_of("note") == [
        "compile note: again: the DLA may not support the layout of its input",
        "compile note: input 'x' plain: TensorRT could not build it with DLA_HWC4 int8",
    ]
    assert [list(request.formats) for request in on.requests] == [["x"], []]


def test_without_a_gpu_engines_are_compiled_and_not_run(board: Board, tmp_path: Path) -> None:
    on = bench(machine=HERE)
    on.backend._open_device = _no_gpu  # type: ignore[assignment]
    done = board.finish(trt_bundle(tmp_path / "dock.edgert"), on=on, machine=HERE)
    assert done.engines == {"parts": "onnxruntime"} and done.skipped[0].why == "host has no DLA"
    assert done.waiting == {"parts": Skipped("tensorrt", "there is no NVIDIA GPU here: none", "parts")}
    assert board.progress_of("done")[1].endswith("placed as planned, not run: it cannot be opened here")


def test_a_model_that_only_an_absent_gpu_can_run_is_run_by_nothing(board: Board, tmp_path: Path) -> None:
    on = bench(machine=HERE)
    on.backend._open_device = _no_gpu  # type: ignore[assignment]
    done = board.finish(trt_bundle(tmp_path / "dock.edgert", engines=["tensorrt"]), on=on, machine=HERE)
    assert done.engines == {} and done.waiting["parts"].engine == "tensorrt"


def _no_gpu() -> None:
    from edgert.errors import DeviceError

    raise DeviceError("there is no NVIDIA GPU here", why="none")


def test_a_bundle_for_another_board_is_refused(board: Board, tmp_path: Path) -> None:
    bundle = trt_bundle(tmp_path / "dock.edgert", board="agx-orin-64gb")
    with pytest.raises(ArtifactError, match="for agx-orin-64gb") as caught:
        board.finish(bundle, on=bench())
    assert "--board orin-nx-16gb" in caught.value.fix


def test_progress_is_told(board: Board, tmp_path: Path) -> None:
    on = bench(**AS_PLANNED)
    build = on.build

    def slowly(request: Any, **options: Any) -> Any:
        from edgert.backend.tensorrt.build_process import Progress

        options["progress"](Progress("Building", "", 1, 4))
        options["progress"](Progress("Tactics", "Building", 7, 9))
        return build(request)

    on.backend._build_once = slowly
    board.finish(trt_bundle(tmp_path / "dock.edgert"), on=on)
    assert [(one.done, one.total, one.model) for one in board.events if one.state == "progress"] == [(1, 4, "parts")]


def test_several_engines_of_a_model_are_all_compiled(board: Board, tmp_path: Path) -> None:
    engines = (engine(dict.fromkeys(SPLIT, "gpu"), 0.6), engine(dict.fromkeys(SPLIT, "dla0"), 0.25), engine(
        dict.fromkeys(SPLIT, "dla1"), 0.15))  # fmt: skip
    on, packed = bench(), tmp_path / "out.edgert"
    done = board.finish(trt_bundle(tmp_path / "dock.edgert", *engines), packed, on=on)
    assert [request.dla_core for request in on.requests] == [None, 0, 1] and on.requests[0].explicit
    assert [one.weight for one in done.manifest.compiled[done.target].engines["parts"]] == [60, 25, 15]


def test_every_profile_has_a_plan_of_tensorrt_rtx_that_is_packed_and_found(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT-RTX 1.4 ends the process where a profile that is not the first is chosen."""
    sizes = "    profiles: {small: {x: [1, 3, 8, 8]}, large: {x: [1, 3, 16, 16]}}\n"
    pipeline = trt_bundle_module.PIPELINE.replace("    task:", f"{sizes}    task:")
    monkeypatch.setattr(trt_bundle_module, "PIPELINE", pipeline)
    made = trt_bundle(
        tmp_path / "dock.edgert",
        precision="fp32",
        gpu=to_bytes(models.conv((1, 3, "h", "w"))),
        engines=["tensorrt", "onnxruntime"],
        board="host",
    )

    def no_gpu() -> Any:
        raise DeviceError("there is no NVIDIA GPU here")

    def workstation() -> Bench:
        found = Bench("rtx-1.4", machine=HERE)
        found.backend._open_device = no_gpu
        return found

    on, packed = workstation(), tmp_path / "out.edgert"
    done = board.finish(made, packed, on=on, machine=HERE)
    shapes = [inputs(from_bytes(one.model))[0].shape for one in on.requests]
    assert sorted(shapes, key=str) == [(1, 3, 16, 16), (1, 3, 8, 8)] and not any(one.profiles for one in on.requests)
    assert any("in 2 plans" in line for line in board.progress_of("done"))
    with open_bundle(packed) as opened:
        (entry,) = opened.manifest.compiled[done.target].engines["parts"]
        assert len(entry.others) == 1 and all(opened.read(one.plan) for one in (entry, *entry.others))
    fresh, again = Board(tmp_path / "other"), workstation()
    fresh.finish(packed, on=again, machine=HERE)
    assert again.requests == [] and fresh.progress_of("cached")


WRITES = 4
"""Entries of one engine: the engine, what it was built under, what kernels took, and what was found of it."""
TIMED: dict[str, Any] = {"answer": {"timing_cache": b"measured here", "seconds": 1.0}}


class Killed(BaseException):
    """The end of a process, as far as the store sees it: nobody catches it."""


class DyingStore(FileStore):
    """A store whose process ends before, or in the middle of, its n-th write."""

    def __init__(self, folder: Path, writes: int) -> None:
        super().__init__(folder)
        self.left = writes

    def put(self, key: str, content: bytes) -> None:
        if not self.left:
            (self.folder / ".new-half").mkdir(parents=True)
            (self.folder / ".new-half" / "body").write_bytes(content[:5])
            raise Killed
        self.left -= 1
        super().put(key, content)


def packed(folder: Path, store: FileStore, on: Bench) -> bytes:
    """The finished bundle; times of runs, which are measured, left out."""
    out = folder / "out.edgert"
    out.unlink(missing_ok=True)
    finish(folder / "dock.edgert", out, machine=ORIN, trt=on.backend, store=store)
    with open_bundle(out) as bundle:
        entries = bundle.manifest.compiled.values()
        checks = {one.checks for entry in entries for engines in entry.engines.values() for one in engines}
        return b"".join(bundle.read(path) for path in bundle.manifest.members if path not in checks)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))
    trt_bundle(tmp_path / "dock.edgert")
    return tmp_path


def test_an_end_at_any_write_leaves_what_the_next_build_can_use(folder: Path) -> None:
    whole = packed(folder, FileStore(folder / "whole"), bench(**TIMED))
    assert len(list((folder / "whole").glob("*.bin"))) == WRITES
    for writes in range(WRITES):
        place = folder / str(writes)
        with pytest.raises(Killed):
            packed(folder, DyingStore(place, writes), bench(**TIMED))
        again = bench(**TIMED)
        assert packed(folder, FileStore(place), again) == whole
        assert len(again.requests) == (0 if writes else 1)


@pytest.mark.parametrize("entry", ["engine", "checks", "last", "timing"])
def test_a_flipped_byte_in_the_cache_is_found_and_never_used(folder: Path, entry: str) -> None:
    store, chance, warned = FileStore(folder / "store"), random.Random(entry), list[str]()
    whole = packed(folder, store, bench(**TIMED))
    for _ in range(5):
        path = kept(store.folder, entry)
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
        path.write_bytes(content)
        on = bench(**TIMED)
        if entry in ("last", "timing"):  # these are asked for only when an engine is compiled
            kept(store.folder, "engine").unlink()
        assert packed(folder, FileStore(store.folder, warn=warned.append), on) == whole
        assert len(on.requests) == (0 if entry == "checks" else 1)
        assert [request.timing_cache for request in on.requests] in (
            [],
            [b"" if entry == "timing" else b"measured here"],
        )
        assert len(warned) == 1 and "is damaged; it is made afresh" in warned.pop()


def kept(folder: Path, entry: str) -> Path:
    """The file of an entry."""
    kinds = {"last": "trt-last-", "timing": "trt-timing-"}
    for path in folder.glob("*.bin"):
        kind = next((name for name, word in kinds.items() if path.name.startswith(word)), "engine")
        if entry == ("checks" if "-checks." in path.name else kind):
            return path
    raise AssertionError(f"no {entry} in {folder}")
