"""What the section ``tuning`` makes of CUDA's provider; no GPU is needed to see which options it gets."""

from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from edgert.backend import EngineOptions
from edgert.backend.ort import cuda
from edgert.backend.ort.cuda import OrtCudaBackend
from edgert.config.model_section import TuningConfig
from edgert.errors import BuildError
from tests.helpers import models

DEVICE = SimpleNamespace(
    ordinal=0, name="Orin", stream=lambda: SimpleNamespace(handle=7), recording=nullcontext(), free_bytes=lambda: (1, 1)
)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Mapping[str, str], Any]]:
    """Provider options and session settings of every session that was asked for; none of them opens."""
    found: list[tuple[Mapping[str, str], Any]] = []

    def opened(content: bytes, settings: Any, options: Mapping[str, str], model: Any) -> None:
        found.append((options, settings))
        raise BuildError("cuDNN has no such kernel")

    monkeypatch.setattr(cuda, "check_provider", lambda: None)
    monkeypatch.setattr(cuda, "open_on_gpu", opened)
    return found


def compiled(tuning: TuningConfig) -> None:
    with pytest.raises(BuildError, match="no such kernel"):
        OrtCudaBackend(DEVICE).compile(models.conv(), EngineOptions(threads=1, tuning=tuning))  # type: ignore[arg-type]


def test_channels_last_is_tried_first_and_the_others_then(tried: list[tuple[Mapping[str, str], Any]]) -> None:
    compiled(TuningConfig())
    assert [options.get("prefer_nhwc") for options, _ in tried] == ["1", None]
    assert {options["cudnn_conv_algo_search"] for options, _ in tried} == {"HEURISTIC"}
    assert not any("use_tf32" in options for options, _ in tried)


def test_settings_of_the_file_are_used(tried: list[tuple[Mapping[str, str], Any]]) -> None:
    compiled(TuningConfig(optimization="basic", channels_last=False, conv_search="exhaustive", tf32=False))
    ((options, settings),) = tried
    assert "prefer_nhwc" not in options
    assert (options["cudnn_conv_algo_search"], options["use_tf32"]) == ("EXHAUSTIVE", "0")
    assert settings.graph_optimization_level == type(settings.graph_optimization_level).ORT_ENABLE_BASIC
