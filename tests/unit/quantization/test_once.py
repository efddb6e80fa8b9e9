"""What making a model INT8 computes once: the scheme per model and target, and no form twice."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from edgert.config import CalibrateConfig, ModelConfig, load_pipeline
from edgert.files import FileStore
from edgert.graph import Graph, read
from edgert.installation import demo_images
from edgert.quantization import calibrated, conversion, int8_model, precision
from edgert.quantization.scheme.units import Target

TARGETS: tuple[Target, ...] = get_args(Target)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, list[Any]]:
    """Function → the graphs it was called with."""
    found: dict[str, list[Any]] = {"scheme": [], "lower": []}

    def count(module: Any, name: str, kind: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def counted(graph: Graph, *arguments: Any, **named: Any) -> Any:
            found[kind].append(graph)
            return real(graph, *arguments, **named)

        monkeypatch.setattr(module, name, counted)

    for target in TARGETS:
        count(import_module("edgert.quantization.scheme.scheme"), f"plan_{target}", "scheme")
    count(import_module("edgert.quantization.quantizer"), "lower", "lower")
    return found


@pytest.fixture
def section(config: ModelConfig, tmp_path: Path) -> ModelConfig:
    images = CalibrateConfig.model_validate({"images": demo_images(), "limit": 48})
    return config.model_copy(update={"calibrate": images, "precision": "int8"})


@pytest.mark.parametrize("target", TARGETS)
def test_the_scheme_is_made_once_and_no_form_twice(
    section: ModelConfig, counts: Mapping[str, list[Any]], target: Target
) -> None:
    int8_model.quantize_section(section, calibrated.calibrate_section(section, target=target), target=target)
    assert len(counts["scheme"]) == 1
    assert len(counts["lower"]) == 1  # corrected biases are put into what was made, which the evaluator compares


def test_nothing_is_lowered_twice_without_corrections(section: ModelConfig, counts: Mapping[str, list[Any]]) -> None:
    plain = section.model_copy(update={"quantize": section.quantize.model_copy(update={"correct_bias": False})})
    int8_model.quantize_section(plain, calibrated.calibrate_section(plain, target="ort"))
    assert {kind: len(calls) for kind, calls in counts.items()} == {"scheme": 1, "lower": 1}


def test_a_run_of_the_demo_makes_them_once_too(tmp_path: Path, counts: Mapping[str, list[Any]]) -> None:
    demo = load_pipeline("hello", ["models.parts.calibrate.limit=8"]).config.models["parts"]
    for _ in range(2):  # the second time it is cached
        precision.in_precision(demo, store=FileStore(tmp_path))
        assert {kind: len(calls) for kind, calls in counts.items()} == {"scheme": 1, "lower": 1}


def test_auto_is_fp16_for_tensorrt_where_int8_is_not_accurate_enough(
    section: ModelConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    auto = section.model_copy(update={"precision": "auto"})
    monkeypatch.setattr(conversion, "_quantize", lambda *_, **__: SimpleNamespace(is_sound=False))
    made = precision.in_precision(auto, store=FileStore(tmp_path), target="gpu")
    assert {array.dtype.name for array in read(made).constants.values()} & {"float16", "float32"} == {"float16"}
