"""Several GPUs in one process: every stream has one of them, from its decoder to its results. The GPUs are doubles,
which refuse work in the context of the other."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgert.assemble import engines, gpus
from edgert.backend import Engine
from edgert.board.devices import GpuDevice
from edgert.config import ModelConfig
from edgert.config import stages as section
from edgert.errors import ConfigError, DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.pipeline import Pipeline
from edgert.runtime import Frame, Result, SourceStats
from edgert.stages.gpu import overlay
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.source import kinds
from edgert.validation import validate
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.gpu_pipeline import MODEL, Camera, GpuEngine, patch_kernels
from tests.helpers.small_pipeline import small_pipeline

COUNT = 20
STREAMS = "abcd"
HEAD = "name: several\n{head}\nmodels: {{parts: {model}}}\nstages:\n"
FIND = "  find: {infer: parts, from: [a, b, c, d]}\n"
OUT = "  out: {sink: jsonl, from: find, path: out.jsonl}\n"


class Source:
    """A camera whose memory is made on the GPU that asks for its frames; without frames where none does."""

    live = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.camera: Camera | None = None

    def on_gpu(self, device: CudaDevice) -> str:
        self.camera = Camera(device, COUNT, name=self.name)
        return ""

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        if self.camera is not None:
            yield from self.camera.frames(stop)

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None:
        """Keeps its memory, since frames may be on their way."""


class Rig:
    """A machine with GPUs, and a pipeline file with four cameras."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, count: int = 2) -> None:
        self.gpu = CudaDouble(count=count)
        self.devices = [CudaDevice(self.gpu, number, Counter()) for number in range(count)]
        self.sources: dict[str, Source] = {}
        self.made: dict[int, list[str]] = defaultdict(list)
        self.refused: dict[int, DeviceError] = {}
        self.folder = folder
        patch.chdir(folder)
        patch_kernels(patch)
        here = SimpleNamespace(gpus=(GpuDevice("double", "9.0", 2**30),) * count, trouble="")
        patch.setattr(gpus, "cuda_driver", lambda: here)
        patch.setattr(engines, "why_not", lambda *_: "")
        rig = self

        def made(self: Any, engine: str, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
            if engine == "onnxruntime":
                raise DeviceError("the processor is not asked for here")
            if self._gpu in rig.refused:
                raise rig.refused[self._gpu]
            rig.made[self._gpu].append(name)
            return cast("Engine", GpuEngine(rig.devices[self._gpu], batch))

        def source_for(name: str, config: section.SourceStage, *rest: Any) -> Any:
            if name not in STREAMS:
                return kinds.source_for(name, config, *rest)
            return self.sources.setdefault(name, Source(name))

        def capture(*_: object) -> None:
            raise DeviceError("there is no CUDA driver")

        patch.setattr(engines.ChainEngines, "_made", made)
        patch.setattr("edgert.assemble.graph.source_for", source_for)
        patch.setattr(CudaDevice, "capture", capture)

    def pipeline(self, stages: str, head: str = "engines: [onnxruntime-cuda, onnxruntime]", **options: Any) -> Pipeline:
        sources = "".join(f"  {name}: {{source: api}}\n" for name in STREAMS)
        model = MODEL.replace(", backend: ort", "")
        text = HEAD.format(head=head, model=model) + sources + stages
        return Pipeline(small_pipeline(self.folder, text, photos=0), **options)

    def places(self) -> dict[str, int]:
        """The GPU of each source."""
        cameras = {name: source.camera for name, source in self.sources.items()}
        return {name: camera.device.ordinal for name, camera in cameras.items() if camera is not None}


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def results() -> dict[str, list[int]]:
    """Frames of each stream in the file of results, as they came."""
    found: dict[str, list[int]] = defaultdict(list)
    for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        found[told["stream"]].append(told["frame"])
    return dict(found)


ALL = {name: list(range(COUNT)) for name in STREAMS}


def test_streams_stay_on_their_gpu_and_in_order(rig: Rig) -> None:
    with rig.pipeline(FIND + OUT) as pipeline:
        summary = pipeline.run()
    assert rig.places() == {"a": 0, "b": 1, "c": 0, "d": 1} and rig.made == {0: ["parts"], 1: ["parts"]}
    assert results() == ALL
    engine = summary.engine["parts"]
    assert engine["gpus"] == [0, 1] and [part["gpus"] for part in engine["parts"]] == [[0], [1]]
    assert summary.frames == {"a": "on GPU 0", "b": "on GPU 1", "c": "on GPU 0", "d": "on GPU 1"}
    counted = {name: one.results_out for name, one in summary.stages.items() if name.startswith("find")}
    assert counted["find"] == counted["find@1"] == 2 * COUNT and summary.frames_out == 4 * COUNT


def test_frames_of_the_host_go_up_to_the_gpu_of_their_stream(rig: Rig) -> None:
    drawn = "".join(
        f"  {name}: {{source: 'synthetic:counter', size: 256x64, limit: {COUNT}, realtime: false}}\n" for name in "ef"
    )
    with rig.pipeline(drawn + "  find: {infer: parts, from: [e, f]}\n" + OUT) as pipeline:
        before = [device.counter.read().copies for device in rig.devices]
        summary = pipeline.run()
        after = [device.counter.read().copies for device in rig.devices]
    assert results() == {name: list(range(COUNT)) for name in "ef"}
    assert "on the host, in memory that the GPU reads" in summary.frames["e"]
    each = [there - here for here, there in zip(before, after, strict=True)]
    assert each[0] == each[1] >= 2 * COUNT  # an image up and a record down, of each frame


def test_a_stage_that_is_the_last_counts_the_frames_of_all_gpus(rig: Rig) -> None:
    with rig.pipeline(FIND) as pipeline:
        summary = pipeline.run()
    assert summary.frames_in == summary.frames_out == 4 * COUNT


def test_further_models_and_what_stands_between_them_get_the_frames_of_their_gpu(rig: Rig) -> None:
    more = FIND + "  track: {python: 'passing:same', from: find}\n  again: {infer: parts, from: track}\n"
    (rig.folder / "passing.py").write_text("def same(result):\n    return result\n")
    with rig.pipeline(more + OUT.replace("from: find", "from: again")) as pipeline:
        summary = pipeline.run()
    assert results() == ALL
    again = [one for name, one in summary.stages.items() if name in ("again", "again@1")]
    assert [one.results_out for one in again] == [2 * COUNT, 2 * COUNT] and not any(one.dropped for one in again)


def test_whoever_listens_to_a_stage_hears_all_gpus(rig: Rig) -> None:
    heard: dict[str, list[int]] = defaultdict(list)
    with rig.pipeline(
        FIND + OUT, callbacks={"find": lambda result: heard[result.frame.stream].append(result.frame.index)}
    ) as pipeline:
        tapped: dict[str, list[int]] = defaultdict(list)
        for result in pipeline.results("find"):
            tapped[result.frame.stream].append(result.frame.index)
        pipeline.wait()
    assert dict(heard) == dict(tapped) == ALL


def test_validate_names_them(rig: Rig) -> None:
    head, sources = "engines: [onnxruntime-cuda]", "".join(f"  {name}: {{source: api}}\n" for name in STREAMS)
    model = MODEL.replace(", backend: ort", "")
    path = small_pipeline(rig.folder, HEAD.format(head=head, model=model) + sources + FIND + OUT, photos=0)
    assert validate(path).gpus == "a, c on GPU 0 (double); b, d on GPU 1 (double)"
    with pytest.raises(ConfigError, match="there is no GPU 7"):
        validate(path, overrides=["gpus=7"])


def test_one_gpu_is_used_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, count=1)
    with rig.pipeline(FIND + OUT) as pipeline:
        summary = pipeline.run()
    assert results() == ALL and set(rig.places().values()) == {0}
    assert set(summary.frames.values()) == {"on the GPU"} and "gpus" not in summary.engine["parts"]
    assert not any("@" in name for name in summary.stages)


@pytest.mark.parametrize("head", ["engines: [onnxruntime-cuda:1]", "engines: [onnxruntime-cuda]\ngpus: 1"])
def test_a_gpu_that_is_named_is_the_only_one(rig: Rig, head: str) -> None:
    with rig.pipeline(FIND + OUT, head) as pipeline:
        pipeline.run()
    assert set(rig.places().values()) == {1} and list(rig.made) == [1] and results() == ALL


def test_a_gpu_that_is_not_there_is_named(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="there is no GPU 2"):
        rig.pipeline(FIND + OUT, "engines: [onnxruntime-cuda:2]")


def test_one_stream_needs_one_gpu(rig: Rig) -> None:
    with rig.pipeline("  find: {infer: parts, from: a}\n" + OUT) as pipeline:
        pipeline.stop()
    assert list(rig.made) == [0]


def test_a_model_that_one_of_them_has_no_room_for_is_an_error_that_names_it(rig: Rig) -> None:
    rig.refused[1] = DeviceError(
        "the model does not fit into the memory of the GPU", why="planned: 9 GiB; actual: 1 GiB"
    )
    with pytest.raises(Exception, match="no engine of the chain") as caught:
        rig.pipeline(FIND + OUT, "engines: [onnxruntime-cuda]")
    assert "parts on GPU 1" in str(caught.value) and "planned: 9 GiB; actual: 1 GiB" in str(caught.value)


def test_images_are_made_and_brought_down_by_the_gpu_that_has_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Painter(overlay.GpuPainter):
        def __init__(self, device: CudaDevice, counter: Counter) -> None:
            made.append(device.ordinal)
            super().__init__(device, counter, Kernels(device, None, lambda: SimpleNamespace(compile=lambda *_: b"")))

        def paint(self, source: Any, size: tuple[int, int], shapes: Any) -> Any:
            (plane, *_) = source.planes
            assert plane.ordinal == self.device.ordinal
            return super().paint(source, size, shapes)

    monkeypatch.setattr(overlay, "GpuPainter", Painter)
    seen: dict[str, list[int]] = defaultdict(list)

    def see(result: Result) -> None:
        assert (result.frame.planes[0] == result.frame.index % 256).all()  # brought down from where it was
        seen[result.frame.stream].append(result.frame.index)

    stages = FIND + "  show: {draw: [boxes], from: find}\n" + OUT.replace("from: find", "from: show")
    with rig.pipeline(stages, callbacks={"show": see}) as pipeline:
        pipeline.run()
    assert sorted(made) == [0, 1] and dict(seen) == results() == ALL
