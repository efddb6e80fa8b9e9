"""What can be asked for, and what is refused before any TensorRT is looked at."""

import json
from dataclasses import fields, replace
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from edgert.backend.base import Span
from edgert.backend.tensorrt import build_process, build_request, execution_context, network
from edgert.backend.tensorrt.log import LogRecord
from edgert.errors import BuildError
from tests.helpers import models
from tests.helpers.threads import in_threads

SPAN = Span((1, 3), (2, 3), (4, 3))
REQUEST = build_request.BuildRequest(
    b"onnx",
    {"a": ("t",), "b": ("y", "z")},
    precision="int8",
    profiles=({"x": Span((1, 3), (1, 3), (1, 3))},),
    placement={"a": "dla1"},
    fp16_nodes=("b",),
    calibration="TRT-100300-EntropyCalibration2\nx: 3c010204\n",
    pools=build_request.Pools(1 << 28, 4096),
    formats={"x": build_request.Format("CHW16", "float16")},
    timing_cache=b"\x00\xff",
    optimization_level=0,
    compute=("8.6",),
)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"placement": {"aa": "gpu"}}, r"no node 'aa'; did you mean 'a'"),
        ({"fp16_nodes": ("zz",)}, "no node 'zz'"),
        ({"placement": {"a": "npu"}}, "placed on 'npu'"),
        ({"placement": {"a": "dla0", "b": "dla1"}}, "two DLA cores"),
        ({"profiles": ({"x": SPAN},)}, "several shapes in an engine with DLA"),
        ({"formats": {"x": build_request.Format("CHW17")}}, "CHW17"),
        ({"formats": {"x": build_request.Format("LINEAR", "complex64")}}, "complex64"),
        ({"optimization_level": 6}, "optimization level 6"),
    ],
)
def test_refusals(change: dict[str, Any], what: str) -> None:
    with pytest.raises(BuildError, match=what) as caught:
        replace(REQUEST, **change)
    assert caught.value.where == "model" and caught.value.why


def test_cores() -> None:
    assert REQUEST.dla_core == 1 and not REQUEST.all_on_dla
    assert replace(REQUEST, placement={"a": "dla0", "b": "dla0"}).all_on_dla
    assert replace(REQUEST, placement={"a": "gpu"}).dla_core is None


def test_request_of_a_model() -> None:
    request = build_request.request_of(models.conv(), precision="fp16")
    assert list(request.nodes.values()) == [("c",), ("y",), ("mean",)]
    assert request.title == "test.onnx" and request.precision == "fp16" and not request.explicit


@pytest.mark.parametrize("size", [0, 1, 4095, 4097, 3 << 20, -4096])
def test_dla_pools_are_powers_of_two_from_4_kib(size: int) -> None:
    with pytest.raises(BuildError, match=r"powers of two|cannot have") as caught:
        build_request.Pools(dla_local_bytes=size)
    assert "DLA_LOCAL_DRAM" in caught.value.what and caught.value.fix.startswith("use ")


def test_pools() -> None:
    assert dict(build_request.Pools(1000, 4096, 8192).named_limits()) == {
        "WORKSPACE": 1000,
        "DLA_MANAGED_SRAM": 4096,
        "DLA_LOCAL_DRAM": 8192,
    }
    with pytest.raises(BuildError, match="workspace cannot have 0 bytes"):
        build_request.Pools(workspace_bytes=0)


LAYER = network.Layer("conv", "CONVOLUTION", "[ONNX Layer: a]", ("x",), ("t",), "FLOAT")
LOG = (LogRecord("INFO", "text", "dla", "conv"),)
RESULT = build_process.BuildResult(b"plan\x00", b"", LOG, "{}", (LAYER,), ("a",), "TensorRT 10.3.0", 1.5)


@pytest.mark.parametrize("record", [REQUEST, RESULT])
def test_records_come_through_a_pipe_as_they_were(record: Any) -> None:
    down, up = Pipe()
    with down, up:
        down.send(record)
        back = up.recv()
    assert type(back) is type(record)
    assert all(getattr(back, one.name) == getattr(record, one.name) for one in fields(record))


def test_a_result_comes_back_from_plain_data() -> None:
    back = build_process.result_of(json.loads(json.dumps(build_process.plain_result(RESULT))), RESULT.plan)
    assert all(getattr(back, one.name) == getattr(RESULT, one.name) for one in fields(RESULT))


class TestLayout:
    def test_plain(self) -> None:
        assert (layout := execution_context.Layout((2, 3, 4), (12, 4, 1), "float16")).is_plain and layout.nbytes == 48

    def test_chw16(self) -> None:
        """NVIDIA's description: [N][(C+15)/16][H][W][16]."""
        shape = (2, 19, 3, 5)
        layout = execution_context.Layout(shape, (2 * 3 * 5, 3 * 5, 5, 1), "float16", 1, 16)
        values = np.arange(np.prod(shape), dtype=np.float16).reshape(shape)
        memory = np.zeros(layout.nbytes, np.uint8)
        layout.pack(values, memory)
        stored = memory.view(np.float16).reshape(2, 2, 3, 5, 16)
        for n, c, h, w in ((0, 0, 0, 0), (1, 18, 2, 4), (1, 15, 1, 3), (0, 16, 2, 0)):
            assert stored[n, c // 16, h, w, c % 16] == values[n, c, h, w]
        assert not stored[:, 1, :, :, 3:].any()
        back = np.zeros_like(values)
        layout.unpack(memory, back)
        assert (back == values).all()

    def test_dla_linear_rows_are_padded(self) -> None:
        """[N][C][H][W rounded up to 64 bytes]."""
        layout = execution_context.Layout((1, 2, 3, 5), (2 * 3 * 64, 3 * 64, 64, 1), "int8")
        values = np.arange(30, dtype=np.int8).reshape(1, 2, 3, 5)
        memory = np.zeros(layout.nbytes, np.uint8)
        layout.pack(values, memory)
        assert not layout.is_plain and layout.nbytes == 5 * 64 + 5
        assert memory[3 * 64 + 2 * 64 + 4] == values[0, 1, 2, 4]

    @given(
        st.lists(st.integers(1, 9), min_size=2, max_size=4), st.sampled_from([1, 2, 4, 16, 32]), st.sampled_from([0, 3])
    )
    def test_packing_loses_nothing(self, shape: list[int], vector: int, padding: int) -> None:
        elements = [*shape]
        elements[1] = -(-shape[1] // vector)
        strides = list(execution_context.row_major((*elements[:-1], elements[-1] + padding)))
        layout = execution_context.Layout(tuple(shape), tuple(strides), "int32", 1, vector)
        values = np.arange(1, np.prod(shape) + 1, dtype=np.int32).reshape(shape)
        memory, back = np.zeros(layout.nbytes, np.uint8), np.zeros_like(values)
        layout.pack(values, memory)
        layout.unpack(memory, back)
        assert (back == values).all()
        assert sorted(memory.view(np.int32)[memory.view(np.int32) > 0]) == list(range(1, values.size + 1))

    def test_empty(self) -> None:
        assert execution_context.Layout((0, 3), (3, 1), "float32").nbytes == 0


def test_requests_can_be_made_in_threads() -> None:
    made: list[build_request.BuildRequest] = []
    in_threads(lambda: made.append(build_request.request_of(models.conv())))
    assert len({request.model for request in made}) == 1 and len(made) == 4
