"""What a bundle is built for."""

from pathlib import Path

import pytest

from edgert.board.record import board
from edgert.compiler.build_target import BuildTarget, build_target, engines_of, precision_of, tensorrt_of
from edgert.config import ModelConfig, PipelineFile, load_pipeline
from edgert.errors import ConfigError

MODEL = {"onnx": "a.onnx", "task": {"embed": "none"}}


@pytest.fixture
def file(tmp_path: Path) -> PipelineFile:
    (tmp_path / "p.yaml").write_text("stages:\n  a: {source: api}\n")
    return load_pipeline(tmp_path / "p.yaml")


def config(**changes: object) -> ModelConfig:
    return ModelConfig.model_validate({**MODEL, **changes})


def target(name: str) -> BuildTarget:
    return BuildTarget(board(name), name)


def test_the_pipelines_own_board_is_this_machine(file: PipelineFile) -> None:
    own = build_target(file, None, None, None)
    assert (own.name, own.board, own.mode, own.tensorrt) == ("host", None, "", "")
    with pytest.raises(ConfigError, match="--mode needs a board"):
        build_target(file, "host", "15W", None)
    with pytest.raises(ConfigError, match="--trt needs a board"):
        build_target(file, None, None, "10.3")


def test_a_board_has_its_usual_mode_and_tensorrt(file: PipelineFile) -> None:
    found = build_target(file, "orin-nx-16gb", None, None)
    assert (found.name, found.mode, found.tensorrt) == ("orin-nx-16gb", board("orin-nx-16gb").usual_mode.name, "10.3.0")
    assert len(found.digest) == 64
    assert build_target(file, "orin-nx-16gb", "maxn", "11.4").tensorrt == "11.4.0"
    with pytest.raises(ConfigError, match="no board 'orin-nx'"):
        build_target(file, "orin-nx", None, None)
    with pytest.raises(ConfigError, match="no power mode"):
        build_target(file, "orin-nx-16gb", "17W", None)


def test_a_tensorrt_that_no_jetson_has_is_refused_before_anything_is_built(file: PipelineFile) -> None:
    with pytest.raises(ConfigError, match=r"no Jetson has TensorRT 9\.3") as caught:
        build_target(file, "orin-nx-16gb", None, "9.3")
    assert caught.value.where == "--trt" and "8.5.2, 10.3.0" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "requested", "release"),
    [
        ("xavier-nx-8gb", None, "8.5.2"),
        ("orin-nano-8gb", None, "10.3.0"),
        ("thor-t5000", None, "10.13.3"),
        ("orin-nano-8gb", "10.7", "10.7.0"),
        ("orin-nano-8gb", "8.6.2.3", "8.6.2.3"),
    ],
)
def test_the_release_is_that_of_the_boards_jetpack(name: str, requested: str | None, release: str) -> None:
    assert tensorrt_of(board(name), requested) == release


@pytest.mark.parametrize("text", ["10", "ten", "10.x", "", "10.3-1"])
def test_what_is_no_release(text: str) -> None:
    with pytest.raises(ConfigError, match="no TensorRT version"):
        tensorrt_of(board("orin-nano-8gb"), text)


def test_auto_precision_follows_images_and_board() -> None:
    host, jetson = BuildTarget(None), target("orin-nx-16gb")
    images = {"images": "photos"}
    assert [precision_of(config(), one) for one in (host, jetson)] == ["fp32", "fp16"]
    assert [precision_of(config(calibrate=images), one) for one in (host, jetson)] == ["int8", "int8"]
    assert precision_of(config(precision="fp32", calibrate=images), jetson) == "fp32"


@pytest.mark.parametrize(
    ("placement", "uses"),
    [
        ("auto", True),
        ("gpu", False),
        ("dla", True),
        ("dla1", True),
        ({"*": "gpu"}, False),
        ({"*": "gpu", "Conv_0": "dla0"}, True),
        ({"replicate": ["gpu", "dla0"]}, True),
        ({"replicate": ["gpu"]}, False),
    ],
)
def test_who_may_use_a_dla(placement: object, uses: bool) -> None:
    requested = config(placement=placement, precision="fp16")
    assert target("orin-nx-16gb").uses_dla(requested) is uses
    assert not target("orin-nano-8gb").uses_dla(requested)
    assert not target("orin-nx-16gb").uses_dla(config(placement=placement, precision="fp32"))
    chain = ["tensorrt", "onnxruntime-cuda", "onnxruntime"]
    assert engines_of(target("orin-nx-16gb"), [requested]) == (["tensorrt-dla", *chain] if uses else chain)


def test_any_machine_has_onnx_runtime() -> None:
    assert engines_of(BuildTarget(None), [config()]) == ["onnxruntime"]


def test_calibration_caches_end_with_tensorrt_11() -> None:
    found = [BuildTarget(None, tensorrt=release).takes_cache for release in ("8.5.2", "10.13.3", "11.0.0", "")]
    assert found == [True, True, False, False]
