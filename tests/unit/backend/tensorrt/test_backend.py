"""TensorRT as a backend: what is cached, under which key, and what is logged before anything is built again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from edgert.backend import Engine, EngineOptions
from edgert.backend.tensorrt.build_process import CompileError
from edgert.backend.tensorrt.build_request import BuildRequest, Format, Pools, request_of
from edgert.backend.tensorrt.engine_cache import changes, key_of, read_built_engine, read_record
from edgert.backend.tensorrt.log import classify
from edgert.backend.tensorrt.trt_backend import Listener, TrtBackend, settings_of, static_request
from edgert.backend.tensorrt.trt_engine import UnopenedError
from edgert.config.model_section import TensorRtConfig
from edgert.errors import ArtifactError, BuildError, DeviceError
from edgert.files import FileStore
from tests.helpers import models
from tests.helpers.trt_bench import HERE, ORIN, Bench
from tests.helpers.trt_double import FakeTensor

BATCHED = {"x": ((-1, 3, 8, 8), "FLOAT", "INPUT"), "y": ((-1, 4, 8, 8), "FLOAT", "OUTPUT")}
OPTIONS = EngineOptions()
KEY = "default", 0


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "engines")


def test_an_engine_runs() -> None:
    bench = Bench()
    engine = bench.backend.compile(models.conv(), OPTIONS)
    assert isinstance(engine, Engine) and engine.info["backend"] == "tensorrt" and engine.info["cached"] is False
    session = engine.session()
    assert session.inputs["x"].shape == (1, 3, 8, 8) and session.run()[0].shape == (1, 4, 8, 8)
    engine.close()
    assert bench.device.live_bytes == 0 and bench.device.depth == 0


def test_the_builder_gets_what_the_options_have() -> None:
    bench = Bench()
    given = {"workspace": "64MiB", "dla_sram": "1MiB", "optimization": 0, "sparse": True}
    builder = TensorRtConfig.model_validate(given)
    bench.backend.compile(models.conv(), EngineOptions(builder=builder))
    for call in (
        "IBuilderConfig.set_memory_pool_limit(WORKSPACE, 67108864)",
        "IBuilderConfig.builder_optimization_level = 0",
        "IBuilderConfig.set_flag(SPARSE_WEIGHTS)",
    ):
        assert call in bench.double.calls
    assert not any("DLA_MANAGED_SRAM" in call or "host_code" in call for call in bench.double.calls)


def test_memory_of_the_dla_is_given_where_a_node_is_on_one() -> None:
    sizes = {"workspace": "64MiB", "dla_sram": "1MiB", "dla_local": "512MiB", "dla_global": "256MiB"}
    builder = TensorRtConfig.model_validate(sizes)
    on_dla = settings_of(builder, {"a": "gpu", "b": "dla0"})["pools"]
    assert on_dla == Pools(64 << 20, 1 << 20, 512 << 20, 256 << 20)
    assert settings_of(builder, {"a": "gpu"})["pools"] == Pools(64 << 20)


def test_a_version_compatible_engine_may_run_the_runtime_that_it_brings() -> None:
    bench = Bench()
    bench.backend.compile(models.conv(), EngineOptions(builder=TensorRtConfig(version_compatible=True)))
    calls = bench.double.calls
    allowed = calls.index("Runtime.engine_host_code_allowed = True")
    assert calls.index("IBuilderConfig.set_flag(VERSION_COMPATIBLE)") < allowed
    assert calls[allowed + 1] == "Runtime.deserialize_cuda_engine(<4 bytes>)"


@pytest.mark.parametrize(
    ("other", "change"),
    [
        (Bench("10.7"), "TensorRT 10.3.0 → 10.7.0"),
        (Bench(machine=replace(ORIN, l4t="36.5.0")), "L4T 36.4.3 → 36.5.0"),
        (Bench(machine=replace(ORIN, name="agx-orin-64gb")), "module orin-nx-16gb → agx-orin-64gb"),
    ],
)
def test_what_changed_is_logged_before_it_is_built_again(store: FileStore, other: Bench, change: str) -> None:
    Bench().backend.compile(models.conv(), EngineOptions(store=store))
    reported: list[tuple[str, int]] = []
    other.backend.listener = Listener(lambda text: reported.append((text, len(other.requests))))
    other.backend.compile(models.conv(), EngineOptions(store=store))
    assert reported == [(f"test.onnx is compiled again: {change}", 0)] and len(other.requests) == 1


def batched() -> Bench:
    return Bench(bound=BATCHED, inputs=[FakeTensor("x", (-1, 3, 8, 8))])


def test_the_second_time_the_request_is_not_even_made(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleaning a large model and writing it down takes seconds, and all that is needed of it is a few digests."""
    options = EngineOptions(profiles={"default": {"x": (4, 3, 8, 8)}}, store=store)
    model = models.conv(("n", 3, 8, 8))
    batched().backend.compile(model, options)
    monkeypatch.setattr("edgert.backend.tensorrt.trt_backend.static_request", pytest.fail)
    engine = batched().backend.compile(model, options)
    assert engine.info["cached"] is True and engine.inputs[0].shape == (4, 3, 8, 8)


@pytest.mark.parametrize("what", ["model", "shapes", "builder", "precision"])
def test_another_request_is_made(store: FileStore, what: str) -> None:
    options = EngineOptions(profiles={"default": {"x": (4, 3, 8, 8)}}, store=store)
    model = models.conv(("n", 3, 8, 8))
    batched().backend.compile(model, options)
    others = {
        "shapes": replace(options, profiles={"default": {"x": (2, 3, 8, 8)}}),
        "builder": replace(options, builder=TensorRtConfig(optimization=5)),
        "precision": replace(options, precision="fp16"),
    }
    other = batched()
    other.backend.compile(models.conv(("n", 3, 8, 8), seed=1) if what == "model" else model, others.get(what, options))
    assert len(other.requests) == 1


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[]", b"{}"])
def test_a_request_that_cannot_be_read_is_made_again(store: FileStore, content: bytes) -> None:
    options = EngineOptions(store=store)
    Bench().backend.compile(models.conv(), options)
    (path,) = store.folder.glob("trt-request-*")
    store.put(path.name.partition(".")[0], content)
    again = Bench()
    assert again.backend.compile(models.conv(), options).info["cached"] is True and again.requests == []


def test_going_back_builds_nothing(store: FileStore) -> None:
    old, new = Bench(), Bench(machine=replace(ORIN, l4t="36.5.0"))
    for bench in (old, new, old, new):
        bench.backend.compile(models.conv(), EngineOptions(store=store))
    assert len(old.requests) == len(new.requests) == 1


def test_another_power_mode_is_a_note_and_no_reason_to_compile(store: FileStore) -> None:
    slow, fast, hidden = Bench(), Bench(machine=replace(ORIN, mode="25W")), Bench(machine=replace(ORIN, mode=""))
    slow.backend.compile(models.conv(), EngineOptions(store=store))
    engine = fast.backend.compile(models.conv(), EngineOptions(store=store))
    assert fast.requests == [] and engine.info["cached"] is True
    assert (engine.info["compiled_in"], engine.info["runs_in"]) == ("15W", "25W")
    assert fast.reported == [
        "test.onnx was compiled in power mode 15W and runs in 25W: its kernels were chosen at other clocks"
    ]
    same = slow.backend.compile(models.conv(), EngineOptions(store=store))
    unknown = hidden.backend.compile(models.conv(), EngineOptions(store=store))
    assert "compiled_in" not in {**same.info, **unknown.info} and slow.reported == hidden.reported == []


def installed(root: Path, version: str) -> Path:
    """A system whose package manager has this build of TensorRT."""
    status = root / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(f"Package: libnvinfer10\nStatus: install ok installed\nVersion: {version}\n")
    return root


def test_another_build_of_one_version_compiles_again(store: FileStore, tmp_path: Path) -> None:
    """10.3.0.26 and 10.3.0.30 call themselves 10.3.0, and neither opens the other's engines."""
    old = Bench(root=installed(tmp_path / "old", "10.3.0.26-1+cuda12.5"))
    new = Bench(root=installed(tmp_path / "new", "10.3.0.30-1+cuda12.5"))
    old.backend.compile(models.conv(), EngineOptions(store=store))
    new.backend.compile(models.conv(), EngineOptions(store=store))
    assert new.reported == ["test.onnx is compiled again: TensorRT 10.3.0.26 → 10.3.0.30"] and len(new.requests) == 1


def test_a_cached_engine_that_no_longer_opens_is_replaced(store: FileStore) -> None:
    Bench().backend.compile(models.conv(), EngineOptions(store=store))
    later = Bench(foreign=[b"plan"], plan=b"new")
    engine = later.backend.compile(models.conv(), EngineOptions(store=store))
    assert engine.info["cached"] is False and len(later.requests) == 1
    why = "the cached engine no longer opens (Version tag does not match)"
    assert later.reported == [f"test.onnx is compiled again: {why}"]
    again = Bench(foreign=[b"plan"])
    assert again.backend.compile(models.conv(), EngineOptions(store=store)).info["cached"] is True
    assert again.requests == [] and again.reported == []


def test_an_engine_that_does_not_open_right_after_compiling_is_an_error(store: FileStore) -> None:
    Bench().backend.compile(models.conv(), EngineOptions(store=store))
    bench = Bench(opens=False)
    with pytest.raises(UnopenedError, match="cannot open this engine"):
        bench.backend.compile(models.conv(), EngineOptions(store=store))
    assert len(bench.requests) == 1 and len(bench.reported) == 1


def test_a_cached_engine_that_lacks_memory_is_kept(store: FileStore) -> None:
    Bench().backend.compile(models.conv(), EngineOptions(store=store))
    bench = Bench(opens=False, refusal="Error Code 1: Cuda Runtime (out of memory)")
    with pytest.raises(DeviceError, match="cannot open this engine") as caught:
        bench.backend.compile(models.conv(), EngineOptions(store=store))
    assert "out of memory" in caught.value.why and bench.requests == []
    assert Bench().backend.compile(models.conv(), EngineOptions(store=store)).info["cached"] is True


def test_another_model_or_precision_is_said(store: FileStore) -> None:
    bench = Bench()
    model = models.conv()
    bench.backend.find_or_build(request_of(model), store)
    bench.backend.find_or_build(request_of(model, precision="fp16"), store)
    bench.backend.find_or_build(replace(request_of(model, precision="fp16"), model=b"other"), store)
    assert bench.reported == [
        "test.onnx is compiled again: precision fp32 → fp16",
        "test.onnx is compiled again: another model",
    ]


def test_the_dla_compiler_is_part_of_the_key(tmp_path: Path) -> None:
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text("Package: nvidia-l4t-dla-compiler\nStatus: install ok installed\nVersion: 36.4.3-20250107\n")
    assert Bench(root=tmp_path).backend.facts["DLA software"] == "36.4.3-20250107"
    assert "DLA software" not in Bench(root=tmp_path, machine=HERE).backend.facts


def test_timings_are_handed_to_the_next_build_of_the_same_machine(store: FileStore) -> None:
    bench = Bench(answer={"timing_cache": b"measured"})
    bench.backend.find_or_build(request_of(models.conv()), store)
    bench.backend.find_or_build(request_of(models.conv(), precision="fp16"), store)
    assert [request.timing_cache for request in bench.requests] == [b"", b"measured"]
    other = Bench("10.7")
    other.backend.find_or_build(request_of(models.conv()), store)
    assert other.requests[0].timing_cache == b""


def placed(core: str = "dla0", **options: Any) -> BuildRequest:
    nodes = request_of(models.conv()).nodes
    return request_of(models.conv(), precision="fp16", placement=dict.fromkeys(nodes, core), **options)


def test_the_ladder_is_climbed_aloud_and_remembered(store: FileStore) -> None:
    bench = Bench()
    bench.failures = [CompileError("TensorRT built no engine", why="ForeignNode")]
    request = placed()
    made = bench.backend.find_or_build(request, store)
    assert len(bench.requests) == 2 and made.attempts == ("the DLA compiler may have run out of memory",)
    assert bench.reported == ["again: the DLA compiler may have run out of memory"]
    again = Bench().backend.find_or_build(request, store)
    assert again.cached and again.request.pools == made.request.pools and again.attempts == made.attempts


@pytest.mark.parametrize("missing", ["", "pools", "formats", "power_mode"])
def test_a_cached_engine_that_cannot_be_read_is_built_again_and_logged(store: FileStore, missing: str) -> None:
    made = Bench().backend.find_or_build(request_of(models.conv()), store)
    record, _, plan = made.content.partition(b"\n")
    plain = {key: value for key, value in json.loads(record).items() if missing and key != missing}
    store.put(made.key, json.dumps(plain).encode() + b"\n" + plan)
    bench = Bench()
    assert not bench.backend.find_or_build(request_of(models.conv()), store).cached
    assert len(bench.requests) == 1 and "cannot be read" in bench.reported[0]


def test_a_refusal_is_not_tried_again() -> None:
    bench = Bench(errors=[(0, "the_odd_one", "Frobnicate", "Plugin not found")])
    with pytest.raises(BuildError, match="cannot parse node 'the_odd_one'") as caught:
        bench.backend.compile(models.conv(), OPTIONS)
    assert len(bench.requests) == 1
    assert "opset 17" in caught.value.what and "onnxruntime" in caught.value.fix


class TestDla:
    def test_programs_of_all_engines_of_a_backend_are_counted(self) -> None:
        log = tuple(classify("INFO", f"[DlaLayer] {{ForeignNode[part{number}]}}") for number in range(9))
        bench = Bench(answer={"log": log})
        request = placed()
        first = bench.backend.open(bench.backend.find_or_build(request))
        with pytest.raises(DeviceError, match="9 DLA programs do not fit on dla0") as caught:
            bench.backend.open(bench.backend.find_or_build(request))
        assert "9 of other engines" in caught.value.why
        first.close()
        assert bench.backend.open(bench.backend.find_or_build(request)).loadables == 9

    def test_the_other_core_has_room_of_its_own(self) -> None:
        log = tuple(classify("INFO", f"[DlaLayer] {{ForeignNode[part{number}]}}") for number in range(9))
        bench = Bench(answer={"log": log})
        for core in ("dla0", "dla1"):
            request = placed(core)
            assert bench.backend.open(bench.backend.find_or_build(request)).loadables == 9

    def test_a_core_has_one_job_at_a_time_whoever_it_is_from(self) -> None:
        """Work on one stream is done in order; a GPU may do that of several at once."""
        bench = Bench(answer={"log": (classify("INFO", "[DlaLayer] {ForeignNode[part]}"),)})
        streams = []
        for core in ("dla0", "dla0", "dla1", "gpu", "gpu"):
            bench.answer = {} if core == "gpu" else bench.answer
            request = placed(core)
            streams.append(bench.backend.open(bench.backend.find_or_build(request)).session().stream)
        assert streams[0] is streams[1] and len(set(streams)) == 4

    def test_a_layout_that_fails_in_the_first_run_is_given_up_for_good(self, store: FileStore) -> None:
        """A DLA may not read such an input from memory that it shares with the processor: only a run shows that."""
        layout = {"x": Format("DLA_HWC4", "int8", 0.1, optional=True), "y": Format("LINEAR")}
        request = placed(formats=layout)
        loadable = (classify("INFO", "[DlaLayer] {ForeignNode[part]}"),)
        bench = Bench(answer={"log": loadable}, runs=False)
        (made,), engine = bench.backend.build_and_open({KEY: request}, store)
        plain = {"y": Format("LINEAR")}
        assert [one.formats for one in bench.requests] == [layout, plain] and made.request.formats == plain
        assert bench.reported == [
            "test.onnx is compiled again: the DLA failed with the layout of its input in the first run "
            "(TensorRT failed while running), so inputs are plain"
        ]
        assert engine.info["attempts"] == list(made.attempts) and "first run" in made.attempts[0]
        again = Bench(answer={"log": loadable}, runs=False)
        (found,), _ = again.backend.build_and_open({KEY: request}, store)
        assert found.cached and found.request.formats == plain and again.requests == again.reported == []

    def test_a_layout_that_runs_is_kept(self, store: FileStore) -> None:
        layout = {"x": Format("DLA_HWC4", "int8", 0.1, optional=True)}
        request = placed(formats=layout)
        bench = Bench()
        (made,), _ = bench.backend.build_and_open({KEY: request}, store)
        assert made.request.formats == layout and len(bench.requests) == 1 and bench.reported == []
        assert "IExecutionContext.execute_async_v3" in " ".join(bench.double.calls)


class TestShapes:
    def test_one_profile_makes_them_static(self) -> None:
        bench = Bench()
        bench.backend.compile(models.conv((1, 3, "h", "w")), EngineOptions(profiles={"default": {"x": (1, 3, 8, 8)}}))
        assert bench.requests[0].profiles == ()

    def test_several_are_optimization_profiles(self) -> None:
        bound = {"x": ((1, 3, -1, -1), "FLOAT", "INPUT"), "y": ((1, 4, 8, 8), "FLOAT", "OUTPUT")}
        bench = Bench(bound=bound)
        profiles = {"small": {"x": (1, 3, 8, 8)}, "large": {"x": (1, 3, 16, 16)}}
        request = static_request(models.conv((1, 3, "h", "w")), EngineOptions(profiles=profiles))
        assert [one["x"].usual for one in request.profiles] == [(1, 3, 8, 8), (1, 3, 16, 16)]
        assert all(one["x"].is_fixed for one in request.profiles) and bench.requests == []

    def test_fewer_rows_of_a_batch_can_be_run(self) -> None:
        options = EngineOptions(profiles={"default": {"x": (4, 3, 8, 8)}})
        (profile,) = static_request(models.conv(("n", 3, 8, 8)), options).profiles
        assert profile["x"].least == (1, 3, 8, 8) and profile["x"].most == (4, 3, 8, 8)


def test_what_is_missing_is_one_line() -> None:
    error = DeviceError("there is no NVIDIA GPU here", why="there is no CUDA driver", fix="another machine")
    backend = TrtBackend(machine=HERE, library=Bench().backend.library, device=Mock(side_effect=error))
    assert backend.why_no_library() == ""
    assert backend.why_not() == "there is no NVIDIA GPU here: there is no CUDA driver (another machine)"


def test_facts_have_words() -> None:
    before = {"TensorRT": "10.3.0", "model": "#aa", "float16 nodes": "#1"}
    now = {"TensorRT": "10.7.0", "model": "#bb", "float16 nodes": "none", "GPU": "Orin"}
    assert changes(before, now) == (
        "TensorRT 10.3.0 → 10.7.0",
        "another model",
        "float16 nodes #1… → none",
        "GPU unknown → Orin",
    )
    assert key_of(before) == key_of(dict(reversed(before.items()))) != key_of(now)


@pytest.mark.parametrize("record", [b"", b"nonsense", b"[]", b'{"schema": 1}'])
def test_what_is_no_record(record: bytes) -> None:
    with pytest.raises(ArtifactError, match="no engine that edgert cached"):
        read_record(record)


def test_a_cached_engine_reads_back() -> None:
    request = request_of(models.conv(), precision="fp16")
    made = Bench().backend.find_or_build(request)
    again = read_built_engine(made.content, request)
    assert again.result.plan == made.result.plan == b"plan" and again.facts == made.facts
    assert again.result.layers == made.result.layers and again.key == made.key
