"""Kernels that TensorRT-RTX compiles when an engine first runs: one cache for all contexts, found at the next start."""

import logging
from pathlib import Path
from typing import Any

import pytest

from edgert.backend import EngineOptions
from edgert.backend.tensorrt import engine_cache, library, trt_engine
from edgert.errors import ArtifactError, DeviceError
from edgert.files import FileStore
from tests.helpers import models
from tests.helpers.trt_api import RTX
from tests.helpers.trt_bench import HERE, Bench
from tests.helpers.trt_device import FakeDevice
from tests.helpers.trt_double import Double, Script

BOUND = {"x": ((-1, 3, 2, 2), "FLOAT", "INPUT"), "y": ((-1, 3, 2, 2), "FLOAT", "OUTPUT")}
PROFILES = {"default": {"x": (4, 3, 2, 2)}}


class Start:
    """One start of a process: a TensorRT-RTX that has compiled nothing yet, and an engine of up to four rows."""

    def __init__(self, store: FileStore | None, version: str = "rtx-1.4", **script: Any) -> None:
        self.double = Double(version, Script(**{"bound": BOUND, **script}))
        cache_entry = engine_cache.CacheEntry(store, "kernels") if store is not None else None
        device = FakeDevice(compute=(8, 9))
        self.engine = trt_engine.TrtEngine(
            b"plan", library.library_of(self.double), device, profiles=PROFILES, cache_entry=cache_entry, title="parts"
        )

    def calls(self, start: str) -> list[str]:
        return [call for call in self.double.calls if call.startswith(start)]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "engines")


@pytest.mark.parametrize("version", RTX)
def test_all_contexts_share_one_cache_and_are_eager(version: str) -> None:
    start = Start(None, version)
    one, two = start.engine.session(), start.engine.session()
    for session in (one, two):
        for rows in (1, 2, 4):
            session.enqueue(rows)
    made = len(start.calls("ICudaEngine.create_execution_context(IRuntimeConfig)"))
    assert made == 6 and len(start.calls("IRuntimeConfig.create_runtime_cache")) == 1
    assert len(start.calls("IRuntimeConfig.set_runtime_cache(IRuntimeCache)")) == made
    eager = "IRuntimeConfig.dynamic_shapes_kernel_specialization_strategy = EAGER"
    assert start.calls("IRuntimeConfig.dynamic_shapes") == [eager] * made
    assert start.calls("IRuntimeCache") == []  # nowhere to cache them


def test_they_are_written_when_a_context_was_opened_and_after_the_first_run_of_each_shape(store: FileStore) -> None:
    start = Start(store)
    first = store.get("kernels")  # the process may end before anything runs
    assert first == repr([repr({"x": (4, 3, 2, 2)})]).encode()
    session = start.engine.session()
    for again in (session, start.engine.session()):
        for _ in range(3):
            again.enqueue(4)
    assert len(start.calls("IRuntimeCache.serialize")) == 2  # when it was opened, and once after a run
    session.enqueue(2)
    assert len(store.get("kernels") or b"") > len(first)


def test_the_next_start_compiles_and_writes_nothing(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Start(store).engine.session()
    for rows in (4, 1):
        first.enqueue(rows)
    monkeypatch.setattr(store, "put", lambda key, content: pytest.fail("nothing is new"))
    again = Start(store)
    assert len(again.double.kernels) == 2  # they are there before anything ran
    session = again.engine.session()
    for rows in (4, 1):
        session.enqueue(rows)
    (read,) = again.calls("IRuntimeCache.deserialize")
    order = [read, "IRuntimeConfig.set_runtime_cache(IRuntimeCache)"]
    assert [again.double.calls.index(call) for call in order] == sorted(map(again.double.calls.index, order))


def test_what_tensorrt_does_not_take_is_replaced_and_logged(store: FileStore, caplog: Any) -> None:
    store.put("kernels", b"of another release")
    with caplog.at_level(logging.WARNING):
        start = Start(store)
    (message,) = caplog.messages
    assert message.startswith("parts: cached kernels cannot be read and are compiled again")
    assert len(start.calls("IRuntimeCache.deserialize")) == 3  # not given up at once
    assert store.get("kernels") == repr([repr({"x": (4, 3, 2, 2)})]).encode()


@pytest.mark.parametrize("refused", [1, 2])
def test_good_kernels_that_another_thread_disturbs_are_read_at_the_next_try(
    store: FileStore, caplog: Any, refused: int
) -> None:
    Start(store).engine.session().enqueue(4)
    again = Start(store, refused_reads=refused)
    assert len(again.double.kernels) == 1 and not caplog.messages


def test_a_store_that_cannot_be_written_costs_time_at_the_next_start_only(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def full(key: str, content: bytes) -> None:
        raise ArtifactError("cannot write to the cache", why="no space left")

    monkeypatch.setattr(store, "put", full)
    Start(store).engine.session().enqueue()
    assert "no space left" in caplog.text


def test_other_tensorrts_have_none(store: FileStore) -> None:
    start = Start(store, "10.3")
    start.engine.session().enqueue()
    assert start.calls("IRuntimeC") == [] and store.get("kernels") is None


def test_the_backend_caches_them_beside_the_plan_under_the_same_facts(store: FileStore) -> None:
    options = EngineOptions(store=store)
    first = Bench("rtx-1.4", machine=HERE)
    first.backend.compile(models.conv(), options).session().enqueue()
    kinds = ("[0-9a-f]*", "kernels-*")
    plans, kernels = ([path.name.partition(".")[0] for path in store.folder.glob(f"trt-{kind}")] for kind in kinds)
    assert [name.replace("kernels-", "") for name in kernels] == plans
    again = Bench("rtx-1.4", machine=HERE)
    again.backend.compile(models.conv(), options)
    assert again.requests == [] and again.double.kernels == first.double.kernels != set()
    other = Bench("rtx-1.7", machine=HERE)  # of another release they are not even tried
    other.backend.compile(models.conv(), options)
    assert not any(call.startswith("IRuntimeCache.deserialize") for call in other.double.calls)


class TestUnsupportedCapability:
    """NVIDIA lists no 9.0 for TensorRT-RTX: 1.4 runs there, 1.7 refuses."""

    LISTED = "9.0 is not a supported capability of TensorRT-RTX 1.4.0.76, which lists 7.5, 8.0, 8.6, 8.9, 12.0"

    def bench(self, version: str = "rtx-1.4", **script: Any) -> Bench:
        made = Bench(version, machine=HERE, **script)
        made.device = FakeDevice(compute=(9, 0))
        return made

    def test_it_runs_with_one_warning(self) -> None:
        bench = self.bench()
        engines = [bench.backend.compile(models.conv(), EngineOptions()) for _ in range(2)]
        assert bench.reported == [f"this GPU's compute capability {self.LISTED}: the engine runs anyway"]
        assert [engine.info["unsupported"] for engine in engines] == [self.LISTED] * 2
        engines[0].session().run()

    def test_one_that_is_listed_runs_without(self) -> None:
        bench = self.bench()
        bench.device = FakeDevice(compute=(8, 9))
        engine = bench.backend.compile(models.conv(), EngineOptions())
        assert bench.reported == [] and "unsupported" not in engine.info

    def test_tensorrt_itself_lists_none(self) -> None:
        bench = self.bench("10.3")
        assert "unsupported" not in bench.backend.compile(models.conv(), EngineOptions()).info

    def test_a_refusal_is_named_and_compiles_nothing_again(self, store: FileStore) -> None:
        refusal = "Target GPU SM 90 is not supported by this TensorRT-RTX release"
        for starts in (1, 2):
            bench = self.bench("rtx-1.7", opens=False, refusal=refusal)
            with pytest.raises(DeviceError, match=r"TensorRT-RTX 1\.7\.1\.116 does not support this GPU") as caught:
                bench.backend.compile(models.conv(), EngineOptions(store=store))
            assert len(bench.requests) == (starts == 1) and bench.reported == []
        assert caught.value.why.startswith("compute capability 9.0 is not a supported capability of TensorRT-RTX 1.7")
        assert caught.value.why.endswith(refusal) and "onnxruntime-cuda" in caught.value.fix

    def test_damage_is_no_refusal(self, store: FileStore) -> None:
        """What TensorRT-RTX 1.4.0.76 logs about half a plan, on a GPU that it does not list: compiling again helps."""
        damage = "Error Code 1: Serialization (Serialization assertion plan.header.size == blobSize failed."
        with pytest.raises(trt_engine.UnopenedError, match="cannot open this engine") as caught:
            self.bench(opens=False, refusal=damage).backend.compile(models.conv(), EngineOptions())
        assert caught.value.why == damage
        self.bench().backend.compile(models.conv(), EngineOptions(store=store))
        bench = self.bench(foreign=[b"plan"], refusal=damage)
        with pytest.raises(trt_engine.UnopenedError):
            bench.backend.compile(models.conv(), EngineOptions(store=store))
        assert len(bench.requests) == 1 and damage in bench.reported[0]

    @pytest.mark.parametrize(
        "line",
        [
            "The engine does not support the current compute capability 9.0. Supported compute capabilities are: 8.6",
            "The engine cannot run on this GPU, which has compute capability 9.0.",
            "Target GPU SM 90 is not supported by this TensorRT-RTX release",
        ],
    )
    def test_a_refusal_names_the_capability(self, line: str) -> None:
        with pytest.raises(DeviceError, match="does not support this GPU"):
            self.bench(opens=False, refusal=line).backend.compile(models.conv(), EngineOptions())

    def test_no_execution_context_is_a_refusal_too_and_not_for_lack_of_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = self.bench("rtx-1.7")
        monkeypatch.setattr("edgert.backend.tensorrt.engine_cache.KernelCache.context", lambda self: None)
        with pytest.raises(DeviceError, match="does not support this GPU") as caught:
            bench.backend.compile(models.conv(), EngineOptions())
        assert "it created no execution context" in caught.value.why
