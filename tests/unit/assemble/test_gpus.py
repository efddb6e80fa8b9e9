"""Which GPUs a pipeline uses, and which of its streams goes to which."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.assemble import engines, gpus
from edgert.board.devices import CudaDriver, GpuDevice
from edgert.config import PipelineFile, load_pipeline
from edgert.errors import ConfigError

TWO = (GpuDevice("NVIDIA H200", "9.0", 2**37), GpuDevice("NVIDIA H200", "9.0", 2**37))


def file_of(folder: Path, head: str = "engines: [tensorrt]", stages: str = "") -> PipelineFile:
    path = folder / "pipeline.yaml"
    (folder / "net.onnx").touch()
    more = stages or "  a: {source: a.mp4}\n  find: {infer: net, from: a}\n"
    path.write_text(
        f"schema: 1\n{head}\nmodels:\n  net: {{onnx: net.onnx, task: {{embed: none}}}}\nstages:\n{more}",
        encoding="utf-8",
    )
    return load_pipeline(path)


class TestGpus:
    @pytest.mark.parametrize(
        ("head", "numbers"),
        [
            ("engines: [tensorrt]", (0, 1)),
            ("engines: [onnxruntime-cuda, onnxruntime]", (0, 1)),
            ("engines: [tensorrt, onnxruntime]\ngpus: 1", (1,)),
            ("engines: [tensorrt]\ngpus: [1, 0]", (1, 0)),
            ("engines: tensorrt:1", (1,)),
            ("engines: [tensorrt:0, onnxruntime-cuda:1]", (0, 1)),
            ("engines: [onnxruntime]", (0,)),
            ("name: none", (0,)),
        ],
    )
    def test_those_that_are_named_or_all(self, tmp_path: Path, head: str, numbers: tuple[int, ...]) -> None:
        assert gpus.gpus_of(file_of(tmp_path, head), TWO) == numbers

    def test_without_a_gpu_it_is_as_with_one(self, tmp_path: Path) -> None:
        assert (
            gpus.gpus_of(file_of(tmp_path, "engines: tensorrt:1"), ())
            == gpus.gpus_of(file_of(tmp_path), TWO[:1])
            == (0,)
        )

    @pytest.mark.parametrize(
        "head", ["engines: [tensorrt]\ngpus: [0, 2]", "engines: [onnxruntime-cuda:2, onnxruntime]"]
    )
    def test_one_that_is_not_there_is_an_error_that_names_those_that_are(self, tmp_path: Path, head: str) -> None:
        with pytest.raises(ConfigError) as caught:
            gpus.gpus_of(file_of(tmp_path, head), TWO)
        assert caught.value.what == "there is no GPU 2"
        assert caught.value.why == "this machine has 2 (0: NVIDIA H200, 1: NVIDIA H200)"
        assert caught.value.where.endswith((":3 gpus", ":2 engines"))

    def test_numbers_leave_the_names_of_engines(self, tmp_path: Path) -> None:
        config = file_of(tmp_path, "engines: [tensorrt:0, tensorrt:1, onnxruntime]").config
        assert (config.engines, config.gpus) == (("tensorrt", "onnxruntime"), (0, 1))

    @pytest.mark.parametrize(
        ("head", "message"),
        [
            ("engines: [tensorrt:1]\ngpus: 0", "engines and gpus both name GPUs"),
            ("engines: [onnxruntime:1]", "no engine 'onnxruntime:1'"),
            ("engines: [tensorrt:one]", "no engine 'tensorrt:one'"),
            ("gpus: [-1]", "expected numbers of GPUs, from 0"),
            ("gpus: []", "expected numbers of GPUs, from 0"),
            ("gpus: all", "expected numbers of GPUs, from 0"),
            ("gpus: true", "expected numbers of GPUs, from 0"),
            ("gpus: [1, 1]", "a GPU stands twice: 1, 1"),
        ],
    )
    def test_what_is_no_gpu_is_refused(self, tmp_path: Path, head: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            file_of(tmp_path, head)


class TestStreams:
    def test_equal_ones_are_spread_evenly_in_the_order_of_the_file(self) -> None:
        assert gpus.spread(dict.fromkeys("abcd", 30.0), (0, 1)) == {"a": 0, "b": 1, "c": 0, "d": 1}

    def test_the_costliest_come_first(self) -> None:
        found = gpus.spread({"small": 10.0, "large": 60.0, "middle": 30.0, "other": 25.0}, (0, 1))
        assert found == {"large": 0, "middle": 1, "other": 1, "small": 1}

    def test_one_that_costs_nothing_needs_no_second_gpu(self) -> None:
        assert gpus.spread({"seen": 30.0, "shown": 0.0}, (1, 0)) == {"seen": 1, "shown": 1}

    def test_no_load_is_far_from_the_best(self) -> None:
        costs = {f"s{number}": float(1 + number * 7 % 11) for number in range(20)}
        for count in (2, 3, 4):
            found = gpus.spread(costs, range(count))
            loads = [sum(cost for name, cost in costs.items() if found[name] == gpu) for gpu in range(count)]
            assert max(loads) <= 4 / 3 * max(sum(costs.values()) / count, max(costs.values()))

    def test_costs_are_runs_of_models_per_second(self, tmp_path: Path) -> None:
        stages = (
            "  file: {source: a.mp4}\n  paced: {source: a.mp4, realtime: true}\n"
            "  cam: {source: 'rtsp://cam/1', fps: 10}\n"
            "  alone: {source: 'rtsp://cam/2'}\n"
            "  find: {infer: net, from: [file, paced, cam]}\n  again: {infer: net, from: find, every: 2}\n"
        )
        assert gpus.costs_of(file_of(tmp_path, stages=stages)) == {
            "file": 450.0,
            "paced": 45.0,
            "cam": 15.0,
            "alone": 0.0,
        }


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (GpuDevice("NVIDIA H200", "9.0", 2**36), ""),
        (
            GpuDevice("NVIDIA L4", "8.9", 2**34),
            "that is a NVIDIA H200 of compute capability 9.0, and GPU 1 is a NVIDIA L4 of compute capability 8.9",
        ),
    ],
)
def test_a_gpu_of_another_kind_is_known(monkeypatch: pytest.MonkeyPatch, other: GpuDevice, why: str) -> None:
    here = CudaDriver("13.0", (TWO[0], other))
    monkeypatch.setattr(engines, "cuda_driver", lambda: here)
    assert engines.other_kind(1) == why and engines.other_kind(0) == engines.other_kind(2) == ""
