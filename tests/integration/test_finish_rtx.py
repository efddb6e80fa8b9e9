"""A bundle finished with TensorRT-RTX's real parser and builder, which need no GPU. Skipped where it is missing."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from edgert.backend.tensorrt.library import load
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.bundle.bundle import open_bundle
from edgert.compiler.finish import Finished, finish
from edgert.errors import DeviceError
from edgert.files import FileStore
from edgert.graph import to_bytes
from edgert.memory.cuda import CudaDevice
from edgert.reporter import Progress
from tests.helpers import models
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
