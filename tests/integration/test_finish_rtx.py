"""Bundles finished by TensorRT-RTX's parser and builder, which need no GPU: killed meanwhile, damaged afterwards."""

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from edgert.backend.tensorrt.library import load
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.bundle.bundle import Bundle, open_bundle
from edgert.compiler.finish import Finished, finish
from edgert.compiler.unpack import unpacked
from edgert.errors import ArtifactError, DeviceError
from edgert.files import FileStore
from edgert.graph import to_bytes
from edgert.memory.cuda import CudaDevice
from edgert.reporter import Progress
from tests.helpers import models
from tests.helpers.kill import BUNDLE, kills, uninterrupted
from tests.helpers.trt_bench import HERE
from tests.helpers.trt_bundle import trt_bundle

pytestmark = pytest.mark.skipif(
    not any(map(find_spec, ("tensorrt_rtx", "tensorrt_rtx_bindings"))),
    reason="TensorRT-RTX is not installed (pip install tensorrt-rtx)",
)


class Workstation:
    def __init__(self, folder: Path) -> None:
        self.store, self.events = FileStore(folder / "store"), list[Progress]()

    def finish(self, bundle: Path, output: Path | None = None) -> Finished:
        self.events.clear()
        trt = TrtBackend(machine=HERE, library=load("tensorrt_rtx"), device=_no_gpu)
        return finish(bundle, output, machine=HERE, trt=trt, store=self.store, on_progress=self.events.append)

    def states(self) -> list[str]:
        return [one.state for one in self.events if one.step == "compile" and one.state not in ("progress", "skipped")]


def _no_gpu() -> CudaDevice:
    raise DeviceError("there is no NVIDIA GPU here", why="this test has none")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))


def test_compiled_once_packed_and_found_again(tmp_path: Path) -> None:
    here, packed = Workstation(tmp_path / "one"), tmp_path / "packed.edgert"
    done = here.finish(trt_bundle(tmp_path / "dock.edgert"), packed)
    assert here.states() == ["started", "done"]
    assert done.engines == {"parts": "onnxruntime"} and done.waiting["parts"].engine == "tensorrt"
    assert done.waiting["parts"].why == "there is no NVIDIA GPU here: this test has none"
    assert any(one.state == "progress" and one.total > 0 for one in here.events)
    with open_bundle(packed) as bundle:
        (entry,) = bundle.manifest.compiled[done.target].engines["parts"]
        assert len(bundle.read(entry.plan)) > 1000 and b'"RTX 1.' in bundle.read(entry.record)
    there = Workstation(tmp_path / "two")
    assert there.finish(packed).waiting == done.waiting and there.states() == ["started", "cached"]


def test_a_model_that_it_refuses_runs_with_onnx_runtime(tmp_path: Path) -> None:
    odd = to_bytes(models.unknown_operator())
    done = Workstation(tmp_path).finish(trt_bundle(tmp_path / "dock.edgert", gpu=odd))
    assert done.engines == {"parts": "onnxruntime"} and done.target == ""
    refused = done.skipped[-1]
    assert (refused.engine, refused.model) == ("tensorrt", "parts")
    assert "node 'the_odd_one' (Frobnicate, opset" in refused.why and "ONNX Runtime runs models that" in refused.why


def content(bundle: Bundle) -> dict[str, Any]:
    """Member → what it holds, without what no two compilations say alike: how long it took, and the log's times."""
    found: dict[str, Any] = {path: bundle.read(path) for path in bundle.manifest.members}
    for entry in bundle.manifest.compiled.values():
        for engine in (one for engines in entry.engines.values() for one in engines):
            record = json.loads(found[engine.record])
            for name in ("seconds", "log"):
                del record["result"][name]
            found[engine.record] = record
    return found


def content_of(data: bytes, folder: Path) -> dict[str, Any]:
    path = folder / f"read{BUNDLE}"
    path.write_bytes(data)
    with open_bundle(path) as bundle:
        return content(bundle)


def check(folder: Path, points: int) -> None:
    """Kills, finishes again, compares; what a kill leaves is the bundle as it was, or the finished one."""
    given = trt_bundle(folder / "dock.edgert")
    whole, whole_s = uninterrupted(str(given), folder / "whole")
    wanted, before = content_of(whole, folder), given.read_bytes()
    found = list(kills(str(given), folder / "killed", points, whole_s, seed=points))
    assert [kill.after_s for kill in found if content_of(kill.bundle, folder) != wanted] == []
    assert [kill.after_s for kill in found if kill.left != before and content_of(kill.left, folder) != wanted] == []
    assert [kill.after_s for kill in found if kill.orphans] == []
    assert len(found) == points and any(path.endswith(".plan") for path in wanted)


@pytest.mark.slow
def test_finishing_killed_at_two_points(tmp_path: Path) -> None:
    check(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_finishing_killed_at_twenty_points(tmp_path: Path) -> None:
    check(tmp_path, 20)


@pytest.mark.parametrize("kind", ["plan", "record", "checks"])
def test_a_flipped_byte_of_an_engine_is_refused_and_never_run(finished: Path, tmp_path: Path, kind: str) -> None:
    with open_bundle(finished) as bundle:
        (entry,) = bundle.manifest.compiled.values()
        member = bundle.read(getattr(entry.engines["parts"][0], kind))
    whole, chance = finished.read_bytes(), random.Random(kind)
    start, path = whole.index(member), tmp_path / "flipped.edgert"
    for place in (start, start + len(member) - 1, *(start + chance.randrange(len(member)) for _ in range(20))):
        flipped = bytearray(whole)
        flipped[place] ^= chance.randrange(1, 256)
        path.write_bytes(flipped)
        with pytest.raises(ArtifactError, match="damaged"):
            finish(path)
    with pytest.raises(ArtifactError, match="damaged"), unpacked(path):
        pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGERT_CACHE", str(folder / "cache"))
        finish(trt_bundle(folder / "dock.edgert"), folder / "out.edgert")
    return folder / "out.edgert"
