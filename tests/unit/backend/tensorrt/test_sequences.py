"""The exact calls of a build, for every dialect, accelerator and precision, on a TensorRT that records them."""

from dataclasses import replace
from typing import Any

import pytest

from edgert.backend.base import Span
from edgert.backend.tensorrt import builder as steps
from edgert.backend.tensorrt.build_process import BuildResult, Progress
from edgert.backend.tensorrt.build_request import BuildRequest, Format, Pools
from edgert.backend.tensorrt.builder import compile_engine
from edgert.backend.tensorrt.library import library_of
from edgert.backend.tensorrt.log import LogRecord
from edgert.board.devices import CudaDriver, GpuDevice
from edgert.errors import BuildError, DeviceError
from tests.helpers.trt_api import EVERY, RTX, STRONG, WEAK, api
from tests.helpers.trt_double import Double, FakeLayer, FakeTensor, Script

NODES = {"conv": ("c",), "relu": ("r",), "resize": ("y",)}
LAYERS = (
    FakeLayer("conv", "CONVOLUTION", "conv", ("x",), ("c",)),
    FakeLayer("relu", "ACTIVATION", "relu", ("c",), ("r",)),
    FakeLayer("sizes", "CONSTANT", "", (), ("s",), "INT32"),
    FakeLayer("resize", "RESIZE", "resize", ("r", "s"), ("y",)),
)
SCRIPT = Script(LAYERS, (FakeTensor("x"),), (FakeTensor("y"),))
CACHE = "TRT-100300-EntropyCalibration2\nx: 3c010204\n"
DLA = dict.fromkeys(NODES, "dla1")
MIXED = {"conv": "dla1", "relu": "dla1", "resize": "gpu"}
PLACEMENTS = {"gpu": {}, "dla": DLA, "mixed": MIXED}
REQUEST = BuildRequest(b"onnx", NODES)

BEGIN = ["ILogger()", "Builder(ILogger)", "Builder.create_builder_config()"]
PARSER = ["OnnxParser(INetworkDefinition, ILogger)"]
PARSE = ["OnnxParser.parse(<4 bytes>)", "IBuilderConfig.profiling_verbosity = DETAILED"]
TIMING = ["IBuilderConfig.create_timing_cache(<0 bytes>)", "IBuilderConfig.set_timing_cache(ITimingCache, False)"]
WATCH = ["IProgressMonitor()", "IBuilderConfig.progress_monitor = IProgressMonitor"]
BUILD = ["Builder.build_serialized_network(INetworkDefinition, IBuilderConfig)"]
SAVE = ["IBuilderConfig.get_timing_cache()", "ITimingCache.serialize()"]
CORE = ["IBuilderConfig.set_flag(GPU_FALLBACK)", "IBuilderConfig.DLA_core = 1"]
CHECK = [f"IBuilderConfig.can_run_on_DLA({name})" for name in ("conv", "relu", "resize")]
PLACE: dict[str, list[str]] = {
    "gpu": [],
    "dla": [*CORE, "IBuilderConfig.default_device_type = DLA", *CHECK],
    "mixed": [
        *CORE,
        "IBuilderConfig.default_device_type = GPU",
        "IBuilderConfig.set_device_type(conv, DLA)",
        CHECK[0],
        "IBuilderConfig.set_device_type(relu, DLA)",
        CHECK[1],
    ],
}
WEAK_PRECISION = {
    "fp16": ["IBuilderConfig.set_flag(FP16)"],
    "int8": [
        "IBuilderConfig.set_flag(FP16)",
        "IBuilderConfig.set_flag(INT8)",
        "IInt8EntropyCalibrator2()",
        "IBuilderConfig.int8_calibrator = IInt8EntropyCalibrator2",
    ],
}
STRONG_PARSER: dict[str, list[str]] = {
    "gpu": [],
    "mixed": ["OnnxParser.set_builder_config(IBuilderConfig)", "OnnxParser.set_flag(ADJUST_FOR_DLA)"],
    "dla": [
        "OnnxParser.set_builder_config(IBuilderConfig)",
        "OnnxParser.set_flag(ADJUST_FOR_DLA)",
        "OnnxParser.set_flag(REPORT_CAPABILITY_DLA)",
    ],
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has: a recorded engine is not opened here."""
    monkeypatch.setattr(steps, "_has_gpu", lambda: False)


def built(version: str, request: BuildRequest, script: Script = SCRIPT) -> tuple[list[str], BuildResult]:
    double = Double(version, script)
    result = compile_engine(library_of(double), request, lambda record: None, lambda progress: True)
    return double.calls, result


def network(version: str) -> list[str]:
    """Before 10.0 an explicit batch is asked for, by the number that this version gives its name."""
    explicit = 1 << int(Double(version).NetworkDefinitionCreationFlag.EXPLICIT_BATCH) if version == "8.6" else ""
    return [f"Builder.create_network({explicit})"]


@pytest.mark.parametrize("where", PLACEMENTS)
@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("version", WEAK)
def test_weakly_typed(version: str, precision: Any, where: str) -> None:
    cache = CACHE if precision == "int8" else ""
    calls, result = built(
        version, replace(REQUEST, precision=precision, calibration=cache, placement=PLACEMENTS[where])
    )
    watch = [] if version == "8.6" else WATCH
    precisions = WEAK_PRECISION[precision]
    assert calls == [
        *BEGIN,
        *network(version),
        *PARSER,
        *PARSE,
        *TIMING,
        *precisions,
        *PLACE[where],
        *watch,
        *BUILD,
        *SAVE,
    ]
    assert (result.plan, result.timing_cache) == (b"plan", b"timings")


@pytest.mark.parametrize("where", PLACEMENTS)
@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("version", STRONG)
def test_strongly_typed(version: str, precision: Any, where: str) -> None:
    """FP16 and INT8 stand in the model: the calls are the same."""
    explicit = precision == "int8"
    calls, _ = built(version, replace(REQUEST, precision=precision, explicit=explicit, placement=PLACEMENTS[where]))
    parser = [*PARSER, *STRONG_PARSER[where]]
    assert calls == [*BEGIN, *network(version), *parser, *PARSE, *TIMING, *PLACE[where], *WATCH, *BUILD, *SAVE]


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("version", RTX)
def test_rtx(version: str, precision: Any) -> None:
    request = replace(REQUEST, precision=precision, explicit=precision == "int8", compute=("8.6", "12.0"))
    calls, result = built(version, request)
    target = [
        "IBuilderConfig.num_compute_capabilities = 2",
        "IBuilderConfig.set_compute_capability(SM86, 0)",
        "IBuilderConfig.set_compute_capability(SM120, 1)",
    ]
    assert calls == [*BEGIN, *network(version), *target, *PARSER, *PARSE, *WATCH, *BUILD]
    assert result.timing_cache == b"" and result.library == f"TensorRT-RTX {api(version).version}"


@pytest.mark.parametrize("where", ["dla", "mixed"])
@pytest.mark.parametrize("version", RTX)
def test_rtx_has_no_dla(version: str, where: str) -> None:
    with pytest.raises(BuildError, match="supports no DLA"):
        built(version, replace(REQUEST, placement=PLACEMENTS[where]))


class TestWeak:
    def test_fp32_for_the_gpu_sets_no_flag(self) -> None:
        calls, _ = built("10.3", REQUEST)
        assert not any("set_flag" in call for call in calls)

    def test_a_dla_needs_fp16_even_for_fp32(self) -> None:
        calls, _ = built("10.3", replace(REQUEST, placement=DLA))
        assert "IBuilderConfig.set_flag(FP16)" in calls

    def test_qdq_on_the_gpu_needs_no_cache(self) -> None:
        calls, _ = built("10.7", replace(REQUEST, precision="int8", explicit=True))
        assert "IBuilderConfig.set_flag(INT8)" in calls and not any("calibrator" in call for call in calls)

    def test_exceptions_are_layers_of_the_named_nodes_that_compute(self) -> None:
        request = replace(REQUEST, precision="int8", calibration=CACHE, fp16_nodes=("resize",))
        calls, _ = built("10.3", request)
        at = calls.index("IBuilderConfig.set_flag(PREFER_PRECISION_CONSTRAINTS)")
        assert calls[at + 1] == "ILayer[resize].precision = HALF"
        assert not any("sizes" in call for call in calls)

    def test_the_calibrator_gives_our_text_and_measures_nothing(self) -> None:
        from edgert.backend.tensorrt.dialects import cached_calibrator

        calibrator = cached_calibrator(Double("10.3"), CACHE)
        assert calibrator.read_calibration_cache() == CACHE.encode()
        assert calibrator.get_batch(["x"]) is None and calibrator.get_batch_size() == 1

    def test_nodes_that_the_dla_refuses_are_returned(self) -> None:
        _, result = built("10.3", replace(REQUEST, placement=DLA), replace(SCRIPT, cannot=("resize", "sizes")))
        assert result.refused == ("resize",)

    def test_a_helper_of_nodes_on_both_sides_stays_on_the_gpu(self) -> None:
        shared = (*LAYERS[:3], FakeLayer("resize", "RESIZE", "resize", ("r", "s"), ("y",)))
        shared = (shared[0], replace(shared[1], inputs=("c", "s")), *shared[2:])
        calls, _ = built("10.3", replace(REQUEST, placement=MIXED), replace(SCRIPT, layers=shared))
        assert "IBuilderConfig.set_device_type(sizes, DLA)" not in calls


class TestEveryDialect:
    @pytest.mark.parametrize("version", ["10.3", "11.4"])
    def test_options(self, version: str) -> None:
        request = replace(
            REQUEST,
            placement=DLA,
            pools=Pools(1 << 28, 1 << 20, 1 << 30, 1 << 29),
            version_compatible=True,
            sparse=True,
            optimization_level=5,
            timing_cache=b"earlier",
            formats={"x": Format("DLA_HWC4"), "y": Format("CHW32")},
        )
        calls, _ = built(version, request)
        formats = Double(version).TensorFormat
        for call in (
            "IBuilderConfig.set_memory_pool_limit(WORKSPACE, 268435456)",
            "IBuilderConfig.set_memory_pool_limit(DLA_MANAGED_SRAM, 1048576)",
            "IBuilderConfig.set_memory_pool_limit(DLA_LOCAL_DRAM, 1073741824)",
            "IBuilderConfig.set_memory_pool_limit(DLA_GLOBAL_DRAM, 536870912)",
            "IBuilderConfig.builder_optimization_level = 5",
            "IBuilderConfig.set_flag(VERSION_COMPATIBLE)",
            "IBuilderConfig.set_flag(SPARSE_WEIGHTS)",
            "OnnxParser.set_flag(NATIVE_INSTANCENORM)",
            "IBuilderConfig.create_timing_cache(<7 bytes>)",
            f"ITensor[x].allowed_formats = {1 << int(formats.DLA_HWC4)}",
            f"ITensor[y].allowed_formats = {1 << int(formats.CHW32)}",
        ):
            assert call in calls

    def test_types_of_inputs_are_set_where_types_are_weak(self) -> None:
        request = replace(REQUEST, precision="int8", calibration=CACHE, formats={"x": Format("CHW32", "int8")})
        assert "ITensor[x].dtype = INT8" in built("10.3", request)[0]

    @pytest.mark.parametrize("version", ["11.4", "rtx-1.7"])
    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"calibration": CACHE}, "calibration cache"),
            ({"fp16_nodes": ("conv",)}, "'conv' in float16"),
            ({"precision": "int8"}, "float model INT8"),
            ({"formats": {"x": Format("CHW16", "float16")}}, "type of tensor 'x'"),
        ],
    )
    def test_strong_typing_refuses_what_was_removed(self, version: str, change: dict[str, Any], why: str) -> None:
        with pytest.raises(BuildError, match=why) as caught:
            built(version, replace(REQUEST, **change))
        assert caught.value.fix and caught.value.where == "model"

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"explicit": True, "placement": DLA}, "DLA cannot run a Q/DQ model"),
            ({"precision": "int8"}, "cannot build INT8 without ranges"),
            ({"precision": "int8", "explicit": True, "calibration": CACHE}, "two sources"),
            ({"compute": ("8.7",)}, "this GPU only"),
        ],
    )
    def test_weak_typing_refuses_what_it_cannot(self, change: dict[str, Any], what: str) -> None:
        with pytest.raises(BuildError, match=what):
            built("10.3", replace(REQUEST, **change))

    def test_what_is_wrong_is_refused_before_anything_is_made(self) -> None:
        double = Double("10.3", SCRIPT)
        with pytest.raises(BuildError):
            compile_engine(library_of(double), replace(REQUEST, precision="int8"), lambda r: None, lambda p: True)
        assert double.calls == []

    def test_a_dla_core_that_is_not_there(self) -> None:
        with pytest.raises(DeviceError, match="no dla1") as caught:
            built("10.3", replace(REQUEST, placement=DLA), replace(SCRIPT, dla_cores=1))
        assert "1 DLA core on" in caught.value.why

    def test_a_foreign_timing_cache_is_replaced_by_an_empty_one(self) -> None:
        calls, result = built("10.3", replace(REQUEST, timing_cache=b"foreign"), replace(SCRIPT, accepts_cache=False))
        assert "IBuilderConfig.create_timing_cache(<0 bytes>)" in calls
        assert any("measuring again" in record.text for record in result.log)

    def test_profiles(self) -> None:
        script = replace(SCRIPT, inputs=(FakeTensor("x", (-1, 3, -1, -1)),))
        span = Span((1, 3, 32, 32), (2, 3, 64, 64), (4, 3, 128, 128))
        calls, _ = built("10.3", replace(REQUEST, profiles=({"x": span},)), script)
        at = calls.index("Builder.create_optimization_profile()")
        assert calls[at + 1 : at + 3] == [
            "IOptimizationProfile.set_shape('x', (1, 3, 32, 32), (2, 3, 64, 64), (4, 3, 128, 128))",
            "IBuilderConfig.add_optimization_profile(IOptimizationProfile)",
        ]

    @pytest.mark.parametrize("version", EVERY)
    def test_several_contexts_may_have_the_same_profile(self, version: str) -> None:
        """Until 10.0 that had to be asked for; since 11.0, and TensorRT-RTX 1.7, it cannot be."""
        script = replace(SCRIPT, inputs=(FakeTensor("x", (-1, 3, 8, 8)),))
        profiles = ({"x": Span((1, 3, 8, 8), (1, 3, 8, 8), (4, 3, 8, 8))},)
        asked = "IBuilderConfig.set_preview_feature(PROFILE_SHARING_0806, True)"
        for request in (REQUEST, replace(REQUEST, profiles=profiles)):
            calls, _ = built(version, request, script if request.profiles else SCRIPT)
            assert (asked in calls) == (bool(request.profiles) and version in (*WEAK, "rtx-1.4"))

    @pytest.mark.parametrize(
        ("profile", "what"),
        [
            ({}, "open dimensions"),
            ({"z": Span((1,), (1,), (1,)), "x": Span(*[(1, 3, 8, 8)] * 3)}, "no input 'z'"),
            ({"x": Span(*[(1, 4, 8, 8)] * 3)}, "cannot be"),
            ({"x": Span(*[(1, 3, 8)] * 3)}, "cannot be"),
            ({"x": Span((2, 3, 8, 8), (1, 3, 8, 8), (4, 3, 8, 8))}, "not in order"),
        ],
    )
    def test_profiles_that_do_not_fit(self, profile: dict[str, Span], what: str) -> None:
        script = replace(SCRIPT, inputs=(FakeTensor("x", (-1, 3, -1, -1)),))
        with pytest.raises(BuildError, match=what):
            built("10.3", replace(REQUEST, profiles=(profile,)), script)

    def test_formats_of_what_is_no_input_or_output(self) -> None:
        with pytest.raises(BuildError, match=r"no input or output 'xx'.*did you mean 'x'"):
            built("10.3", replace(REQUEST, formats={"xx": Format("LINEAR")}))

    @pytest.mark.parametrize("version", ["8.6", "10.3", "11.4"])
    def test_parser_errors_name_their_nodes(self, version: str) -> None:
        """8.6 reports the node's position only; its name is that of the model."""
        errors = (
            (1, "relu", "Relu", 'Assertion failed: ok && "Plugin not found, what now?"'),
            (2, "resize", "Resize", "no"),
        )
        with pytest.raises(BuildError) as caught:
            built(version, REQUEST, replace(SCRIPT, errors=errors))
        assert "node 'relu'" in caught.value.what and "node 'resize'" in str(caught.value)
        assert caught.value.why == "Plugin not found, what now?" and "which TensorRT lacks" in caught.value.fix

    def test_a_file_that_is_parsed_as_nothing(self) -> None:
        with pytest.raises(BuildError, match="no network in the model"):
            built("10.3", REQUEST, replace(SCRIPT, outputs=()))

    def test_many_parser_errors_are_counted(self) -> None:
        errors = tuple((0, "conv", "Conv", f"number {at}") for at in range(9))
        with pytest.raises(BuildError, match="and 4 more"):
            built("10.3", REQUEST, replace(SCRIPT, errors=errors))


@pytest.mark.parametrize(
    ("version", "line", "what", "fix"),
    [
        (
            "10.3",
            "10: Could not find any implementation for node {ForeignNode[conv...relu]}.",
            "no implementation for 'conv' to 'relu'",
            "more workspace",
        ),
        (
            "10.3",
            "1: [defaultAllocator.cpp::allocate] Error Code 1: Cuda Runtime (out of memory)",
            "ran out of memory",
            "limit the workspace",
        ),
        (
            "rtx-1.4",
            "MyelinCheckException: cudnn_impl.cpp:1040: CHECK(dtype == myelinTypeFloat || dtype == myelinTypeHalf)",
            "has no INT8 kernel for a layer",
            "precision: fp16",
        ),
        (  # what TensorRT-RTX 1.4.0.76 logs about an Identity of int8
            "rtx-1.4",
            "Internal Error (Node {ForeignNode[y]} cannot be quantized by x. You might want to add a DQ node",
            "supports int8 inputs only if a DequantizeLinear reads them",
            "another type",
        ),
        ("10.3", "4: something", "built no engine", ""),
    ],
)
def test_failures_are_told_apart_by_the_log(version: str, line: str, what: str, fix: str) -> None:
    script = replace(SCRIPT, plan=None, lines=(("INFO", "hello"), ("ERROR", line)))
    with pytest.raises(BuildError, match=what) as caught:
        built(version, replace(REQUEST, precision="int8", explicit=True), script)
    assert caught.value.why.endswith(line) and fix in caught.value.fix


class TestProgress:
    STEPS = (("Building", None, 2), ("Timing", "Building", 3))

    def test_every_step_is_reported(self) -> None:
        reported: list[Progress] = []
        double = Double("10.3", replace(SCRIPT, steps=self.STEPS))
        compile_engine(library_of(double), REQUEST, lambda record: None, lambda one: not reported.append(one))  # type: ignore[func-returns-value]
        assert reported[:4] == [Progress("Building", "", at, 2) for at in (0, 1, 2, 2)]
        assert reported[4:6] == [Progress("Timing", "Building", 0, 3), Progress("Timing", "Building", 1, 3)]

    def test_false_cancels(self) -> None:
        double = Double("10.3", replace(SCRIPT, steps=self.STEPS))
        with pytest.raises(BuildError, match="was canceled"):
            compile_engine(library_of(double), REQUEST, lambda record: None, lambda one: one.step < 1)


def test_the_inspector_is_asked_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_has_gpu", lambda: True)
    calls, result = built("10.3", replace(REQUEST, placement=DLA), replace(SCRIPT, inspector='{"Layers": []}'))
    at = calls.index("Runtime(ILogger)")
    assert calls[at + 1 : at + 5] == [
        "Runtime.DLA_core = 1",
        "Runtime.deserialize_cuda_engine(<4 bytes>)",
        "ICudaEngine.create_engine_inspector()",
        "EngineInspector.get_engine_information(JSON)",
    ]
    assert result.inspector == '{"Layers": []}'


@pytest.mark.parametrize(
    ("driver", "requested_bytes", "limit_bytes"),
    [
        (CudaDriver("12.6", (GpuDevice("Orin", "8.7", 8 << 30, integrated=True),)), None, 3 << 29),
        (CudaDriver("12.6", (GpuDevice("Orin", "8.7", 8 << 30, integrated=True),)), 1 << 26, 1 << 26),
        (CudaDriver("13.0", (GpuDevice("H100", "9.0", 80 << 30),)), None, None),
        (None, None, None),
    ],
    ids=["a board", "a board whose file names it", "memory of its own", "no GPU"],
)
def test_a_gpu_that_shares_the_hosts_memory_gets_half_of_what_is_free_as_workspace(
    monkeypatch: pytest.MonkeyPatch, driver: CudaDriver | None, requested_bytes: int | None, limit_bytes: int | None
) -> None:
    """TensorRT's own default is all of the device's memory: on a board, that of every other process."""
    monkeypatch.setattr(steps, "cuda_driver", lambda: driver)
    monkeypatch.setattr(steps, "free_bytes", lambda: 3 << 30)
    calls, result = built("10.3", replace(REQUEST, pools=Pools(requested_bytes)))
    limits = [call for call in calls if "set_memory_pool_limit" in call]
    assert limits == ([f"IBuilderConfig.set_memory_pool_limit(WORKSPACE, {limit_bytes})"] if limit_bytes else [])
    said = [record.text for record in result.log if "workspace at most" in record.text]
    assert bool(said) == (limit_bytes is not None and requested_bytes is None)


def test_the_log_is_retained_without_verbose_lines_that_mean_nothing() -> None:
    lines = (("VERBOSE", "Tactic: 0x1 Time: 0.1"), ("VERBOSE", "[DlaLayer] {ForeignNode[conv]}"), ("INFO", "hello"))
    reported: list[LogRecord] = []
    double = Double("10.3", replace(SCRIPT, lines=lines))
    result = compile_engine(library_of(double), REQUEST, reported.append, lambda progress: True)
    assert [record.text for record in result.log] == ["[DlaLayer] {ForeignNode[conv]}", "hello"]
    assert list(result.log) == reported
