"""The exact options of a build, release by release, and that trtexec has every one of them.

``tests/data/trtexec`` has the options that ``samples/common/sampleOptions.cpp`` and ``samples/trtexec/trtexec.cpp``
read on each release's branch of https://github.com/NVIDIA/TensorRT.
"""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.backend.base import Span
from edgert.backend.tensorrt.build_request import BuildRequest, Format, Pools, request_of
from edgert.errors import BuildError
from edgert.exporter.trtexec import Command, build_script, command, library_named
from edgert.graph import Model
from tests.helpers.errors import raises
from tests.helpers.models import Dims, make, node

DATA = Path(__file__).resolve().parents[2] / "data" / "trtexec"
WEAK, STRONG = ("8.6", "10.3", "10.7", "10.13", "10.16"), ("11.1",)
CACHE = "TRT-100300-EntropyCalibration2\nx: 3c010204\n"
HEAD = ["--onnx=m/e.onnx", "--saveEngine=m/e.plan", "--skipInference", "--profilingVerbosity=detailed"]
HEAD += ["--exportLayerInfo=m/e.layers.json"]
TIMING = ["--timingCacheFile=m/timing.cache"]


def network(shape: Dims = (1, 3, 8, 8), names: tuple[str, str, str] = ("conv", "relu", "pool")) -> Model:
    nodes = [
        node("Conv", ["x", "w"], ["c"], name=names[0], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], name=names[1]),
        node("GlobalAveragePool", ["r"], ["y"], name=names[2]),
    ]
    return make(nodes, {"x": shape}, {"y": (shape[0], 4, 1, 1)}, {"w": np.ones((4, 3, 3, 3), "f4")})


def request(shape: Dims = (1, 3, 8, 8), **options: Any) -> BuildRequest:
    return request_of(network(shape), **options)


def options(asked: BuildRequest, release: str) -> list[str]:
    return list(command(asked, library_named(f"{release}.0"), "m/e").options)


FP16, INT8 = {"precision": "fp16"}, {"precision": "int8", "calibration": CACHE}
DLA = dict.fromkeys(("conv", "relu", "pool"), "dla1")
MIXED = {"conv": "dla0", "relu": "dla0", "pool": "gpu"}
USE = ["--useDLACore=1", "--allowGPUFallback"]
HALF = ["--precisionConstraints=prefer", "--layerPrecisions=relu:fp16"]


@pytest.mark.parametrize("release", WEAK)
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, []),
        (FP16, ["--fp16"]),
        (INT8, ["--fp16", "--int8", "--calib=m/e.cache"]),
        ({**INT8, "fp16_nodes": ("relu",)}, ["--fp16", "--int8", "--calib=m/e.cache", *HALF]),
        ({"placement": DLA}, ["--fp16", *USE]),
        ({**INT8, "placement": DLA}, ["--fp16", "--int8", "--calib=m/e.cache", *USE]),
        (
            {**INT8, "placement": MIXED, "fp16_nodes": ("relu",)},
            [
                *("--fp16", "--int8", "--calib=m/e.cache"),
                *("--precisionConstraints=prefer", "--layerPrecisions=relu:fp16"),
                *("--useDLACore=0", "--allowGPUFallback", "--layerDeviceTypes=*:GPU,conv:DLA,relu:DLA"),
            ],
        ),
    ],
)
def test_weakly_typed(release: str, asked: dict[str, Any], expected: list[str]) -> None:
    assert options(request(**asked), release) == [*HEAD, *TIMING, *expected]


@pytest.mark.parametrize("release", STRONG)
@pytest.mark.parametrize(
    ("placement", "parser", "expected"),
    [
        ({}, [], []),
        (DLA, ["--adjustForDLA", "--reportCapabilityDLA"], USE),
        (
            MIXED,
            ["--adjustForDLA"],
            ["--useDLACore=0", "--allowGPUFallback", "--layerDeviceTypes=*:GPU,conv:DLA,relu:DLA"],
        ),
    ],
)
def test_strongly_typed(release: str, placement: dict[str, str], parser: list[str], expected: list[str]) -> None:
    asked = request(precision="fp16", placement=placement)
    assert options(asked, release) == [*HEAD, *parser, *TIMING, *expected]


EVERYTHING: dict[str, Any] = {
    "pools": Pools(3 << 19, 1 << 20, 1 << 30, 4096),
    "timing_cache": b"measured",
    "version_compatible": True,
    "sparse": True,
    "optimization_level": 5,
    "formats": {"y": Format("CHW4")},
}


@pytest.mark.parametrize("release", (*WEAK, *STRONG))
def test_every_option_is_one_of_that_release(release: str) -> None:
    known = set((DATA / f"{release}.txt").read_text().split())
    asked = request(("n", 3, 8, 8), precision="fp16", profiles=({"x": SPAN},) * 2, **EVERYTHING)
    for one in (asked, request(precision="fp16", placement=MIXED, **EVERYTHING)):
        found = options(one, release)
        assert {option.partition("=")[0] for option in found} <= known
        for option in (
            "--memPoolSize=workspace:1.5,dlaSRAM:1,dlaLocalDRAM:1024,dlaGlobalDRAM:0.00390625",
            "--versionCompatible",
            "--sparsity=enable",
            "--builderOptimizationLevel=5",
            "--outputIOFormats=fp32:chw4",
        ):
            assert option in found
        assert ("--nativeInstanceNorm" in found) == (release == "8.6")


SPAN = Span((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))


def test_shapes_are_those_of_open_inputs() -> None:
    shapes = ["--minShapes=x:1x3x8x8", "--optShapes=x:2x3x8x8", "--maxShapes=x:4x3x8x8"]
    asked = request(("n", 3, 8, 8), profiles=({"x": SPAN},))
    assert options(asked, "10.3") == [*HEAD, *shapes, *TIMING]
    assert options(request(profiles=({"x": Span(*[(1, 3, 8, 8)] * 3)},)), "10.3") == [*HEAD, *TIMING]


def test_several_profiles_are_numbered_where_trtexec_can() -> None:
    larger = Span((4, 3, 8, 8), (8, 3, 8, 8), (8, 3, 8, 8))
    asked = request(("n", 3, 8, 8), profiles=({"x": SPAN}, {"x": larger}))
    found = options(asked, "10.3")
    assert found[5] == "--profile=0" and found[9] == "--profile=1" and found[10] == "--minShapes=x:4x3x8x8"
    old = command(asked, library_named("8.6.2"), "m/e")
    assert sum(option.startswith("--minShapes") for option in old.options) == 1
    assert "1 of 2 optimization profiles" in old.limitations[0]


def test_formats_are_told_for_every_tensor_of_a_side() -> None:
    asked = request(formats={"x": Format("DLA_HWC4", "int8")}, **INT8)
    assert "--inputIOFormats=int8:dla_hwc4" in options(asked, "10.3")
    assert not any(option.startswith("--outputIOFormats") for option in options(asked, "10.3"))


def test_files_that_are_there_already_are_named_instead() -> None:
    library = library_named("10.3.0")
    first = command(request(**INT8, placement=DLA), library, "m/dla1")
    assert dict(first.members) == {"m/dla1.onnx": request().model, "m/dla1.cache": CACHE.encode()}
    second = command(request(**INT8, placement=MIXED), library, "m/dla0", first.members)
    assert "--onnx=m/dla1.onnx" in second.options and "--saveEngine=m/dla0.plan" in second.options
    assert second.members.keys() == first.members.keys()


def test_the_timing_cache_is_a_file_that_is_filled() -> None:
    made = command(request(timing_cache=b"measured"), library_named("10.3.0"), "m/e")
    assert made.members["m/timing.cache"] == b"measured"


def test_nodes_are_called_as_the_parser_calls_them() -> None:
    asked = request_of(network(names=("conv", "", "a,b")), precision="fp16")
    (nameless,) = [name for name in asked.nodes if name not in ("conv", "a,b")]
    placed = replace(asked, placement={nameless: "dla0", "a,b": "dla0"})
    made = command(placed, library_named("10.3.0"), "m/e")
    assert made.options[-1] == "--layerDeviceTypes=*:GPU,node_of_r:DLA"
    assert "layer 'a,b' on the DLA: trtexec would split its name" in made.limitations


def test_what_trtexec_does_otherwise_is_named() -> None:
    mixed = " ".join(command(request(**INT8, placement=MIXED), library_named("10.3.0"), "m/e").limitations)
    assert "only the one with its name is put on the DLA" in mixed and "PREFER_PRECISION_CONSTRAINTS" in mixed
    assert command(request(**FP16), library_named("10.3.0"), "m/e").limitations == ()
    assert command(request(placement=DLA), library_named("11.4.0"), "m/e").limitations == ()


@pytest.mark.parametrize(
    ("asked", "release", "what"),
    [
        ({"precision": "int8"}, "10.3", "cannot build INT8 without ranges"),
        (INT8, "11.1", "reads no calibration cache"),
        ({"fp16_nodes": ("relu",)}, "11.1", "cannot keep node 'relu' in float16"),
        ({"compute": ("8.7",)}, "10.3", "builds for its own GPU only"),
        ({"formats": {"x": Format("HWC16")}}, "10.3", "cannot make tensor 'x' float32 in HWC16"),
        ({"formats": {"x": Format("LINEAR", "uint8")}}, "8.6", "cannot make tensor 'x' uint8"),
        ({"formats": {"z": Format("LINEAR")}}, "10.3", "no input or output 'z'"),
        ({"shape": ("n", 3, 8, 8)}, "10.3", "input 'x' has open dimensions"),
        ({"shape": ("n", 3, 8, 8), "profiles": ({},)}, "10.3", "input 'x' has open dimensions"),
    ],
)
def test_refusals(asked: dict[str, Any], release: str, what: str) -> None:
    with raises(BuildError, what, why=True):
        options(request(**asked), release)


@pytest.mark.parametrize("version", ["8.5.2", "9.2.0", "ten"])
def test_releases_that_are_not_known(version: str) -> None:
    with raises(BuildError, version, fix="--format onnx"):
        library_named(version)


def test_an_argument_may_be_no_longer_than_linux_takes() -> None:
    model = network(names=("c" * 70_000, "r" * 70_000, "pool"))
    placed = request_of(model, placement={"c" * 70_000: "dla0", "r" * 70_000: "dla0"})
    with raises(BuildError, "--layerDeviceTypes would have 140", why="131071", fix="placement"):
        options(placed, "10.3")


def test_a_release_from_a_bundle_runs_no_command() -> None:
    text = build_script([Command("m/e", (), {}, ())], "10.3.0\ntouch /tmp/evil", [])
    assert [line for line in text.splitlines() if line.startswith("touch")] == []


def test_the_script_gives_every_argument_as_it_is(tmp_path: Path) -> None:
    odd = ["--layerDeviceTypes=*:GPU,a b/'$HOME`:DLA", "--x=é\\"]
    text = build_script([Command("m/e", tuple(odd), {}, ()), Command("m/f", ("--y",), {}, ())], "10.3.0", ["one\nline"])
    path = tmp_path / "build.sh"
    path.write_text(text)
    program = tmp_path / "trtexec"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(["sh", str(path)], env={"TRTEXEC": str(program)}, cwd="/", capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(tmp_path), *odd, str(tmp_path), "--y"], done.stderr
    assert "#   - one line\n" in text and shlex.quote(odd[0]) in text
