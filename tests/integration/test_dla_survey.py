"""Real networks against the DLA's rules."""

import pytest

from dla import Target
from edgert.graph import clean, count, load, read
from edgert.placement.dla_share import Survey, survey
from tests.helpers.evaluation_data import data

INT8, FP16 = Target(2, "10.3", "int8"), Target(2, "10.3", "fp16")


def surveyed(name: str, target: Target) -> Survey:
    model, _ = clean(load(data("models", f"{name}.onnx")))
    found = survey(read(model), target)
    assert dict(zip((node.name for node in found.nodes), found.macs, strict=True)) == {
        one.name: one.macs for one in count(model)
    }
    return found


@pytest.mark.parametrize("target", [INT8, FP16], ids=["int8", "fp16"])
def test_squeezenet_runs_whole_but_for_its_end(target: Target) -> None:
    found = surveyed("squeezenet_fp32", target)
    assert found.summary.macs_yes == 1 and found.loadables == 1
    refused = [node.op for node, one in zip(found.nodes, found.verdicts, strict=True) if one.answer == "no"]
    assert refused == ["GlobalAveragePool", "Flatten", "Softmax"]


def test_yolox_wants_other_slices_and_smaller_pools() -> None:
    found = surveyed("yolox_nano_416", INT8)
    assert found.summary.macs_yes == 1 and found.loadables <= 4
    assert {reason.rule for reason in found.summary.refusals} >= {"slice.step", "pool.window", "context.reshape"}
    assert not found.allowed & {node.name for node in found.nodes if node.op in ("Slice", "Reshape", "Transpose")}


def test_nanodet_is_cut_to_pieces_by_its_shuffles() -> None:
    found = surveyed("nanodet_m_320", INT8)
    assert found.summary.macs_yes == 1 and not found.fits_core
    assert {reason.rule for reason in found.summary.doubts} >= {"shuffle.open"}
    typed = surveyed("nanodet_m_320", Target(2, "11.4.1", "int8"))
    assert {reason.rule for reason in typed.summary.doubts} >= {"slice.precision"}
    assert surveyed("nanodet_m_320", FP16).loadables == found.loadables == typed.loadables
    assert len(found.allowed) > len(typed.allowed)  # its slices; what they leave alone stays on the GPU with them


def test_xavier_and_releases_without_a_dla() -> None:
    xavier = surveyed("mobilenet_v1_025_224", Target(1, "8.5.2", "int8"))
    none = surveyed("mobilenet_v1_025_224", Target(2, "10.13", "int8"))
    assert xavier.summary.macs_yes == 1 and none.loadables == 0 and none.summary.macs_yes == 0
