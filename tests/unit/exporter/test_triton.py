"""What is written for Triton says of a model what is true of it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from edgert.errors import BuildError
from edgert.exporter.triton import Served, Word, batch_of, config_text, format_message, map_entries, repository_part
from edgert.graph import TensorSpec
from edgert.graph.model import Dim
from tests.helpers.triton import parsed


def spec(name: str, *shape: Dim, dtype: str = "float32", ranked: bool = True) -> TensorSpec:
    return TensorSpec(name, shape, dtype, ranked)


FIXED = Served("parts", (spec("images", 1, 3, 64, 64),), (spec("rows", 1, 84, 6),), b"onnx", threads=3)
OPEN = replace(FIXED, inputs=(spec("images", "n", 3, 64, 64),), outputs=(spec("rows", "n", 10),))


def test_a_fixed_batch_stays_in_the_dimensions() -> None:
    read = parsed(config_text(FIXED))
    assert (read.name, read.backend, read.max_batch_size) == ("parts", "onnxruntime", 0)
    assert list(read.input[0].dims) == [1, 3, 64, 64] and list(read.output[0].dims) == [1, 84, 6]
    assert not read.HasField("dynamic_batching")
    kinds = read.instance_group[0].Kind
    assert (read.instance_group[0].count, read.instance_group[0].kind) == (1, kinds.Value("KIND_CPU"))
    assert read.parameters["intra_op_thread_count"].string_value == "3"


@pytest.mark.parametrize(("asked", "given"), [(None, 4), (16, 16), (1, 1)])
def test_an_open_batch_is_triton_s(asked: int | None, given: int) -> None:
    read = parsed(config_text(replace(OPEN, max_batch=asked)))
    assert read.max_batch_size == given and read.HasField("dynamic_batching")
    assert list(read.input[0].dims) == [3, 64, 64] and list(read.output[0].dims) == [10]
    assert list(read.model_warmup[0].inputs["images"].dims) == [3, 64, 64]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((spec("x", "n", 3),), (spec("boxes", "m", 6),)),  # as many boxes as there are
        ((spec("x", None, 3),), (spec("y", None, 6),)),  # unknown twice is not the same
        ((spec("x", "n", 3),), (spec("count"),)),
        ((spec("x", "n", 3), spec("w", 8)), (spec("y", "n"),)),
    ],
)
def test_first_dimensions_that_are_no_batch(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
    served = replace(OPEN, inputs=inputs, outputs=outputs)
    assert batch_of(served) == 0
    read = parsed(config_text(served))
    assert read.input[0].dims[0] == -1
    with pytest.raises(BuildError, match="cannot be served in batches of 8") as caught:
        config_text(replace(served, max_batch=8))
    assert "not one open batch" in caught.value.why and "--max-batch" in caught.value.fix


def test_a_number_alone_is_a_list_that_is_reshaped() -> None:
    read = parsed(config_text(replace(FIXED, inputs=(spec("x"),), outputs=(spec("n", dtype="int64"),))))
    for port in (read.input[0], read.output[0]):
        assert list(port.dims) == [1] and port.HasField("reshape") and list(port.reshape.shape) == []


def test_a_warm_up_needs_sizes() -> None:
    served = replace(FIXED, inputs=(spec("images", 1, 3, "h", "w"),))
    text = config_text(served)
    assert not parsed(text).model_warmup and "#   - a warm-up: the sizes of its inputs are open" in text
    known = parsed(config_text(replace(served, shapes={"images": (1, 3, 32, 48)})))
    zeros = known.model_warmup[0]
    assert zeros.batch_size == 1 and zeros.inputs["images"].zero_data
    assert list(zeros.inputs["images"].dims) == [1, 3, 32, 48] and list(known.input[0].dims) == [1, 3, -1, -1]


def test_on_a_gpu_with_tensorrt_inside() -> None:
    read = parsed(config_text(replace(FIXED, device="gpu", precision="INT8")))
    assert read.instance_group[0].kind == read.instance_group[0].Kind.Value("KIND_GPU")
    (accelerator,) = read.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt" and accelerator.parameters["precision_mode"] == "INT8"


def test_an_engine_with_dla_layers() -> None:
    served = replace(FIXED, backend="tensorrt", device="gpu", dla_core=1)
    assert "parts/1/model.plan" in repository_part(served)
    read = parsed(config_text(served))
    (second,) = read.instance_group[0].secondary_devices
    assert read.backend == "tensorrt" and second.device_id == 1
    assert second.kind == second.SecondaryDeviceKind.Value("KIND_NVDLA") and not read.parameters


def test_labels() -> None:
    files = repository_part(replace(FIXED, labels=b"bolt\nnut\n", is_classifier=True))
    assert list(files) == ["parts/1/model.onnx", "parts/labels.txt", "parts/config.pbtxt"]
    assert parsed(files["parts/config.pbtxt"].decode()).output[0].label_filename == "labels.txt"
    boxes = repository_part(replace(FIXED, labels=b"bolt\nnut\n"))
    assert parsed(boxes["parts/config.pbtxt"].decode()).output[0].label_filename == ""


def test_what_cannot_be_said_is_named() -> None:
    text = config_text(replace(FIXED, limitations=('before it: one\nname: "other"',)))
    assert '#   - before it: one name: "other"\n' in text and parsed(text).name == "parts"
    assert "Not said" not in config_text(FIXED)


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ({"inputs": (spec("x", 1, dtype="float8_e4m3fn"),)}, "'x' of model 'parts' is float8_e4m3fn", "another type"),
        ({"outputs": (spec("y", ranked=False),)}, "'y' of model 'parts' has an unknown number of dim", "edgert build"),
    ],
)
def test_refusals(change: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(BuildError, match=what) as caught:
        config_text(replace(FIXED, **change))
    assert fix in caught.value.fix


def test_every_kind_of_field() -> None:
    group = [{"count": 2, "kind": Word("KIND_CPU")}, {"count": 1, "gpus": [0, 1]}]
    ports = [{"name": "x", "dims": [-1, 3], "reshape": {"shape": []}, "optional": True}]
    message = {"name": "m", "max_batch_size": 0, "input": ports, "instance_group": group}
    read = parsed(format_message({**message, "parameters": map_entries({"a": {"string_value": "b"}})}))
    assert (read.name, list(read.input[0].dims), read.input[0].optional) == ("m", [-1, 3], True)
    assert read.input[0].HasField("reshape") and not read.input[0].reshape.shape
    assert [one.count for one in read.instance_group] == [2, 1] and list(read.instance_group[1].gpus) == [0, 1]
    assert read.parameters["a"].string_value == "b"


@given(st.text())
def test_any_text_reads_back(text: str) -> None:
    encodable = text.encode("utf-8", "ignore").decode()
    assert parsed(format_message({"name": encodable})).name == encodable
