"""What every backend promises; the ones that compute something must also compute the right thing."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from edgert.backend import Backend, Engine, EngineOptions, Session, backend
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.errors import BuildError, ConfigError, EdgertError, ModelError
from edgert.files import FileStore
from edgert.graph import Model
from edgert.kinds import BACKENDS
from edgert.memory import ALIGN_BYTES
from tests.helpers import models
from tests.helpers.errors import raises

RTX_1_4 = "TensorRT-RTX 1.4."
SMALL, LARGE = {"x": (1, 3, 8, 8)}, {"x": (1, 3, 16, 12)}


@pytest.fixture(params=[name for name in BACKENDS.own if name not in ("auto", "onnxruntime-cuda")])
def any_backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "openvino":
        pytest.importorskip("openvino", reason="openvino (extra 'openvino') is not installed")
    found = backend(request.param)
    missing = found.why_not() if isinstance(found, TrtBackend) else ""
    if missing:
        pytest.skip(f"TensorRT did not run: {missing}")
    return found


@pytest.fixture
def ort() -> Backend:
    return backend("ort")


@pytest.fixture(params=["ort", "openvino"])
def computing(request: pytest.FixtureRequest) -> Backend:
    if request.param == "openvino":
        pytest.importorskip("openvino", reason="openvino (extra 'openvino') is not installed")
    return backend(request.param)


def exact(model: Model, **inputs: np.ndarray) -> list[np.ndarray]:
    return list(ReferenceEvaluator(model.proto).run(None, inputs))


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class TestEveryBackend:
    def test_names_shapes_and_types(self, any_backend: Backend) -> None:
        engine = any_backend.compile(models.conv(), EngineOptions(threads=1))
        assert isinstance(engine, Engine) and engine.profiles == ("default",) and engine.outputs_known
        assert [(t.name, t.shape, t.dtype) for t in engine.inputs] == [("x", (1, 3, 8, 8), "float32")]
        assert [(t.name, t.shape, t.dtype) for t in engine.outputs] == [
            ("y", (1, 4, 8, 8), "float32"),
            ("mean", (1, 4, 1, 1), "float32"),
        ]
        assert engine.batched == (True, True) and not engine.dynamic_batch
        assert engine.info["backend"] == any_backend.name
        engine.close()

    def test_bound_tensors_are_aligned_and_stay_the_same(self, any_backend: Backend) -> None:
        session = any_backend.compile(models.conv(), EngineOptions(threads=1)).session()
        assert isinstance(session, Session)
        first = [session.inputs["x"], *session.run()]
        second = [session.inputs["x"], *session.run()]
        assert all(a is b for a, b in zip(first, second, strict=True))
        assert all(array.ctypes.data % ALIGN_BYTES == 0 and array.flags.c_contiguous for array in first)
        assert first[0].flags.writeable and (first[0] == 0).all()

    def test_sessions_share_nothing(self, any_backend: Backend) -> None:
        engine = any_backend.compile(models.conv(), EngineOptions(threads=1))
        one, other = engine.session(), engine.session()
        assert not np.shares_memory(one.inputs["x"], other.inputs["x"])
        assert not any(np.shares_memory(a, b) for a in one.run() for b in other.run())

    def test_several_inputs_and_scalars(self, any_backend: Backend) -> None:
        engine = any_backend.compile(models.two_inputs(), EngineOptions(threads=1))
        session = engine.session()
        assert {name: array.shape for name, array in session.inputs.items()} == {"a": (2, 3), "b": (3,)}
        assert [array.shape for array in session.run()] == [(2, 3), ()]
        assert engine.batched == (True, False)

    def test_profiles(self, any_backend: Backend) -> None:
        options = EngineOptions(threads=1, profiles={"small": SMALL, "large": LARGE})
        engine = any_backend.compile(models.conv((1, 3, "h", "w")), options)
        assert engine.profiles == ("small", "large")
        assert engine.inputs[0].shape == (1, 3, 8, 8)
        for name, shape in ((None, (8, 8)), ("small", (8, 8)), ("large", (16, 12))):
            session = engine.session(name)
            assert session.inputs["x"].shape[2:] == shape
            assert session.run()[0].shape == (1, 4, *shape)

    def test_a_single_profile_keeps_its_name(self, any_backend: Backend) -> None:
        engine = any_backend.compile(models.conv((1, 3, "h", "w")), EngineOptions(1, {"large": LARGE}))
        assert engine.session("large").inputs["x"].shape == (1, 3, 16, 12)
        assert [t.shape for t in engine.outputs] == [(1, 4, 16, 12), (1, 4, 1, 1)]

    def test_an_unknown_profile_has_a_nearest_word(self, any_backend: Backend) -> None:
        engine = any_backend.compile(models.conv((1, 3, "h", "w")), EngineOptions(1, {"small": SMALL, "large": LARGE}))
        with pytest.raises(ModelError, match="no profile 'smal'; did you mean 'small'"):
            engine.session("smal")

    @pytest.mark.parametrize(
        "shapes",
        [{"z": (1, 3, 8, 8)}, {"x": (1, 3, 8)}, {"x": (1, 4, 8, 8)}, {"x": (1, 3, 0, 8)}, {"x": (1, 3, -1, 8)}],
    )
    @pytest.mark.parametrize("alone", [True, False])
    def test_a_profile_that_does_not_fit(
        self, any_backend: Backend, shapes: dict[str, tuple[int, ...]], alone: bool
    ) -> None:
        profiles = {"bad": shapes} if alone else {"good": SMALL, "bad": shapes}
        with pytest.raises(ModelError):
            any_backend.compile(models.conv((1, 3, "h", "w")), EngineOptions(1, profiles))

    @pytest.mark.parametrize("batch", ["n", None])
    def test_rows_of_a_dynamic_batch(self, any_backend: Backend, batch: str | None) -> None:
        engine = any_backend.compile(models.conv((batch, 3, 8, 8)), EngineOptions(1, {"default": {"x": (4, 3, 8, 8)}}))
        assert engine.dynamic_batch and engine.batched == (True, True)
        session = engine.session()
        assert session.inputs["x"].shape == (4, 3, 8, 8)
        for rows in (1, 4, 3, None, 1):
            assert [array.shape[0] for array in session.run(rows)] == [rows or 4] * 2

    def test_inputs_of_different_length_are_no_batch(self, any_backend: Backend) -> None:
        engine = any_backend.compile(models.stacked(), EngineOptions(1, {"default": {"a": (2, 3), "b": (4, 3)}}))
        assert not engine.dynamic_batch and engine.batched == (False,)
        assert [array.shape for array in engine.session().run()] == [(6, 3)]

    @pytest.mark.parametrize("rows", [0, 5, -1])
    def test_rows_that_are_not_there(self, any_backend: Backend, rows: int) -> None:
        engine = any_backend.compile(models.conv(("n", 3, 8, 8)), EngineOptions(1, {"default": {"x": (4, 3, 8, 8)}}))
        with pytest.raises(ModelError, match="rows"):
            engine.session().run(rows)

    def test_a_static_batch_is_run_whole(self, any_backend: Backend) -> None:
        engine = any_backend.compile(models.conv((4, 3, 8, 8)), EngineOptions(1))
        assert not engine.dynamic_batch
        assert [array.shape[0] for array in engine.session().run(1)] == [4, 4]

    @pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16", "DOUBLE", "UINT8", "INT8", "INT32", "INT64", "BOOL"])
    def test_types_of_elements(self, any_backend: Backend, kind: str) -> None:
        model = models.of_type(TensorProto.DataType.Value(kind))
        if kind == "INT8" and isinstance(any_backend, TrtBackend) and any_backend.library.title.startswith(RTX_1_4):
            with raises(
                BuildError, "int8 inputs only if a DequantizeLinear reads them", why="cannot be quantized by x"
            ):  # 1.7 does it
                any_backend.compile(model, EngineOptions(1))
            return
        engine = any_backend.compile(model, EngineOptions(1))
        session = engine.session()
        assert session.run()[0].dtype == session.inputs["x"].dtype == np.dtype(engine.inputs[0].dtype)


class TestWhatIsComputed:
    def test_outputs_are_right_and_follow_the_input(self, computing: Backend) -> None:
        model = models.conv()
        session = computing.compile(model, EngineOptions(threads=1)).session()
        for seed in range(3):
            session.inputs["x"][:] = noise((1, 3, 8, 8), seed)
            for found, wanted in zip(session.run(), exact(model, x=session.inputs["x"]), strict=True):
                assert np.allclose(found, wanted, atol=1e-5)

    def test_the_same_input_gives_the_same_bits(self, computing: Backend) -> None:
        session = computing.compile(models.conv(), EngineOptions(threads=2)).session()
        session.inputs["x"][:] = noise((1, 3, 8, 8))
        first = [array.copy() for array in session.run()]
        for _ in range(5):
            assert all((a == b).all() for a, b in zip(first, session.run(), strict=True))

    @pytest.mark.parametrize("batch", ["n", None])
    def test_rows_are_computed_apart(self, computing: Backend, batch: str | None) -> None:
        model = models.conv((batch, 3, "h", "w"))
        session = computing.compile(model, EngineOptions(1, {"default": {"x": (4, 3, 8, 8)}})).session()
        session.inputs["x"][:] = noise((4, 3, 8, 8))
        wanted = exact(model, x=session.inputs["x"])
        for rows in (2, 4, 1, 3):
            for found, whole in zip(session.run(rows), wanted, strict=True):
                assert np.allclose(found, whole[:rows], atol=1e-5)

    def test_the_first_run_of_a_row_count_is_not_of_an_older_input(self, computing: Backend) -> None:
        model = models.conv(("n", 3, 8, 8))
        session = computing.compile(model, EngineOptions(1, {"default": {"x": (2, 3, 8, 8)}})).session()
        session.run(1)
        session.inputs["x"][:] = noise((2, 3, 8, 8))
        assert np.allclose(session.run(1)[0], exact(model, x=session.inputs["x"])[0][:1], atol=1e-5)

    def test_threads_get_the_same_as_one_alone(self, computing: Backend) -> None:
        model = models.conv((1, 3, 64, 64))
        engine = computing.compile(model, EngineOptions(threads=1))
        images = [noise((1, 3, 64, 64), seed) for seed in range(4)]

        def work(image: np.ndarray) -> None:
            session, wanted = engine.session(), exact(model, x=image)[0]
            for _ in range(25):
                session.inputs["x"][:] = image
                assert np.allclose(session.run()[0], wanted, atol=1e-4)

        with ThreadPoolExecutor(len(images)) as pool:
            list(pool.map(work, images))

    def test_dynamic_dimensions_need_a_profile(self, computing: Backend) -> None:
        with raises(ModelError, "dynamic dimensions", fix="profile"):
            computing.compile(models.conv((1, 3, "h", "w")), EngineOptions(1))

    @pytest.mark.parametrize("model", [models.unknown_operator(), models.bad_shapes()])
    def test_what_it_cannot_run(self, computing: Backend, model: Model) -> None:
        with pytest.raises((BuildError, ModelError)) as caught:
            computing.compile(model, EngineOptions(1))
        assert "test.onnx" in str(caught.value)

    def test_an_operator_it_does_not_know_is_named(self, ort: Backend) -> None:
        with raises(BuildError, "ONNX Runtime cannot run this model", why="Frobnicate", fix="inspect"):
            ort.compile(models.unknown_operator(), EngineOptions(1))

    def test_text_is_no_input(self, ort: Backend) -> None:
        with pytest.raises(ModelError, match="input 'x' has type tensor"):
            ort.compile(models.texts(), EngineOptions(1))

    @pytest.mark.parametrize(
        ("node", "kind", "named"),
        [
            (helper.make_node("SequenceConstruct", ["x"], ["y"]), None, r"seq\(tensor\(float\)\)"),
            (helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING), TensorProto.STRING, r"tensor\(string\)"),
            (helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16), TensorProto.BFLOAT16, "bfloat16"),
        ],
    )
    def test_an_output_is_a_tensor_of_numbers(
        self, ort: Backend, node: NodeProto, kind: int | None, named: str
    ) -> None:
        sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
        out = sequence if kind is None else models.Typed(kind, models.IMAGE)
        model = models.make([node], {"x": models.IMAGE}, {"y": out})
        with raises(ModelError, f"output 'y' has type .*{named}", fix="float32"):
            ort.compile(model, EngineOptions(1))

    def test_a_closed_engine_opens_no_session(self, computing: Backend) -> None:
        engine = computing.compile(models.conv(), EngineOptions(1))
        session = engine.session()
        engine.close()
        engine.close()
        with pytest.raises(EdgertError, match="closed"):
            engine.session()
        assert session.run()[0].shape == (1, 4, 8, 8)


class TestOutputsThatDependOnTheData:
    def test_as_many_rows_as_there_are(self, computing: Backend) -> None:
        engine = computing.compile(models.keep_above(), EngineOptions(1))
        assert not engine.outputs_known and engine.batched == (False,)
        session = engine.session()
        for count in (0, 3, 1, 10, 0):
            session.inputs["x"][:] = 0
            session.inputs["x"][0, :count] = np.arange(1, count + 1)[:, None]
            (rows,) = session.run()
            assert rows.shape == (count, 6) and rows[:, 0].tolist() == list(range(1, count + 1))

    def test_non_maximum_suppression(self, computing: Backend) -> None:
        model = models.suppress()
        engine = computing.compile(model, EngineOptions(1))
        assert not engine.outputs_known
        session = engine.session()
        random = np.random.default_rng(0)
        for _ in range(5):
            corners = random.uniform(0, 20, (1, 10, 2)).astype("f4")
            session.inputs["boxes"][:] = np.concatenate([corners, corners + 10], axis=2)
            session.inputs["scores"][:] = random.uniform(0, 1, (1, 2, 10))
            (retained,) = session.run()
            (wanted,) = exact(model, **session.inputs)
            assert sorted(retained.tolist()) == sorted(wanted.tolist())


class TestCache:
    def compiled(
        self, ort: Backend, folder: Path, model: Model, **profile: tuple[int, ...]
    ) -> tuple[Engine, np.ndarray]:
        profiles = {"default": profile} if profile else {}
        engine = ort.compile(model, EngineOptions(1, profiles, store=FileStore(folder)))
        session = engine.session()
        session.inputs["x"][:] = noise(session.inputs["x"].shape)
        return engine, session.run()[0].copy()

    @pytest.mark.parametrize(
        ("shape", "rows"),
        [((1, 3, 8, 8), 1), ((1, 3, "h", "w"), 1)]
        + [((batch, 3, *size), rows) for batch in ("n", None) for size in ((8, 8), ("h", "w")) for rows in (1, 2)],
    )
    def test_is_hit_the_second_time_with_equal_outputs(
        self, ort: Backend, tmp_path: Path, shape: models.Dims, rows: int
    ) -> None:
        model, profile = models.conv(shape), {"x": (rows, 3, 8, 8)}
        first, wanted = self.compiled(ort, tmp_path, model, **profile)
        second, found = self.compiled(ort, tmp_path, model, **profile)
        assert (first.info["cached"], second.info["cached"]) == (False, True)
        assert (found == wanted).all()
        assert (first.inputs, first.outputs, first.batched, first.dynamic_batch) == (
            second.inputs,
            second.outputs,
            second.batched,
            second.dynamic_batch,
        )
        if rows > 1:
            assert second.session().run(1)[0].shape[0] == 1

    def test_another_model_or_another_profile_is_another_entry(self, ort: Backend, tmp_path: Path) -> None:
        dynamic = models.conv((1, 3, "h", "w"))
        for model, size in ((dynamic, 8), (dynamic, 16), (models.conv((1, 3, "h", "w"), seed=1), 8)):
            assert not self.compiled(ort, tmp_path, model, x=(1, 3, size, size))[0].info["cached"]

    @pytest.mark.parametrize("damage", [b"", b"\0" * 100])
    def test_a_damaged_entry_is_compiled_again(self, ort: Backend, tmp_path: Path, damage: bytes) -> None:
        _, wanted = self.compiled(ort, tmp_path, models.conv())
        (entry,) = tmp_path.glob("*.bin")
        entry.write_bytes(damage)
        again, found = self.compiled(ort, tmp_path, models.conv())
        assert not again.info["cached"] and (found == wanted).all()
        assert self.compiled(ort, tmp_path, models.conv())[0].info["cached"]

    def test_an_entry_that_the_runtime_refuses_is_passed_by(self, ort: Backend, tmp_path: Path) -> None:
        """ONNX Runtime refuses what it optimized itself where a Loop has names of the graph around it."""
        _, wanted = self.compiled(ort, tmp_path, models.conv())
        (entry,) = tmp_path.glob("*.bin")
        FileStore(tmp_path).put(entry.name.partition(".")[0], b"no model")
        again, found = self.compiled(ort, tmp_path, models.conv())
        assert not again.info["cached"] and (found == wanted).all()

    def test_where_nothing_can_be_cached_it_is_logged_and_works(
        self, ort: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        with caplog.at_level(logging.WARNING):
            engine, found = self.compiled(ort, tmp_path / "file" / "cache", models.conv())
        assert not engine.info["cached"] and found.shape == (1, 4, 8, 8)
        assert "cannot write to the cache" in caplog.text


def test_backends_by_name() -> None:
    assert backend("auto").name == "ort"
    with pytest.raises(ConfigError, match="no backend 'otr'; did you mean 'ort'"):
        backend("otr")
