"""Bundles built from real models: what is in them, what is built again, and what comes of damage and interruption."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import edgert
from edgert.backend import Span
from edgert.backend.tensorrt.library import library_of
from edgert.bundle.bundle import open_bundle
from edgert.compiler.build_target import model_of
from edgert.compiler.engine_specs import BundleModel, engine_specs
from edgert.compiler.unpack import unpacked
from edgert.errors import BuildError, CalibrationError, ConfigError, EdgertError, ModelError
from edgert.pipeline import Pipeline
from edgert.quantization.calibration.ranges import load_table
from edgert.quantization.lowering.trt_form import parse_cache
from edgert.runtime.records import Embedding
from edgert.steps import Stopped
from tests.helpers.errors import raises
from tests.helpers.kill import kills, uninterrupted
from tests.helpers.small_pipeline import JETSON, TEXT, Build, small_pipeline, write_photo
from tests.helpers.trt_double import Double

ALL = ["load", "shapes", "rewrite", "calibrate", *["quantize"] * 3, "survey", "lower", "verify", "place"]
ALL += ["placement", "bundle"]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small pipeline, its bundle and the cache of its build."""
    folder = tmp_path_factory.mktemp("made")
    Build(small_pipeline(folder), folder / "a.edgert", folder / "cache")
    return folder


@pytest.fixture
def path(first: Path, tmp_path: Path) -> Path:
    """The small pipeline in the folder of the test, with its bundle and the cache."""
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    return tmp_path / "small.yaml"


def test_a_bundle_for_a_jetson_holds_every_form_with_its_evidence(tmp_path: Path, cache: Path) -> None:
    path = small_pipeline(tmp_path)
    first = Build(path, tmp_path / "a.edgert", cache)
    assert first.made == ALL
    assert "no x86 machine can build" in first.details
    with open_bundle(tmp_path / "a.edgert") as bundle:
        manifest, (model,) = bundle.manifest, bundle.manifest.models.values()
        assert (manifest.board, manifest.tensorrt, manifest.engines[0]) == ("orin-nx-16gb", "10.3.0", "tensorrt-dla")
        assert set(model.forms) == {"float", "ort", "gpu", "dla"} and model.precision == "int8"
        assert model.inputs[0].shape == (1, 3, 16, 16)
        prepared = model_of(bundle.read(model.forms["float"]), Path("float"))
        (tmp_path / "ranges.json").write_bytes(bundle.read(model.files["ranges"]))
        table = load_table(tmp_path / "ranges.json", prepared)
        scales = parse_cache(bundle.read(model.files["cache"]).decode())
        assert table.images == 8
        assert scales["x"] == pytest.approx(table.amax("x") / 127, rel=1e-6)
        evidence = json.loads(bundle.read(model.files["quality"]))["forms"]
        assert evidence["float"]["relative_error"] < 1e-5
        assert all(0 < evidence[form]["relative_error"] < 0.1 for form in ("gpu", "dla"))
        assert evidence["ort"]["relative_error"] < 0.1  # ONNX Runtime may run so small a network faster in float
        assert bundle.read(model.files["labels"]) == b"bolt\nnut\n"
        placement = json.loads(bundle.read(model.files["placement"]))
        nodes = {node["name"] for node in placement["dla"]["nodes"]}
        assert placement["requested"] == "auto" and placement["engines"]
        assert all(set(engine["nodes"]) <= nodes for engine in placement["engines"])
        assert sum(engine["share"] for engine in placement["engines"]) == pytest.approx(1)
        plan = json.loads(bundle.read("plan.json"))
        assert plan["predicted"] and plan["boards"][0]["board"] == "orin-nx-16gb"


def test_a_second_build_does_nothing_and_the_same_again_elsewhere(path: Path, tmp_path: Path, cache: Path) -> None:
    before = (tmp_path / "a.edgert").stat().st_mtime_ns
    again = Build(path, tmp_path / "a.edgert", cache)
    assert again.made == [] and not again.built.written
    assert (tmp_path / "a.edgert").stat().st_mtime_ns == before
    Build(path, tmp_path / "b.edgert", tmp_path / "other cache")
    assert (tmp_path / "b.edgert").read_bytes() == (tmp_path / "a.edgert").read_bytes()
    small_pipeline(tmp_path / "moved")
    Build(tmp_path / "moved/small.yaml", tmp_path / "c.edgert", cache)
    assert (tmp_path / "c.edgert").read_bytes() == (tmp_path / "a.edgert").read_bytes()


@pytest.mark.parametrize(
    ("override", "made"),
    [
        ("models.parts.task.embed=l2", ["bundle"]),
        ("stages.out.queue=7", ["bundle"]),
        ("name=other", ["bundle"]),
        ("models.parts.calibrate.limit=8", []),
        ("models.parts.quantize.correct_bias=false", [*["quantize"] * 3, "verify", "bundle"]),
        ("models.parts.calibrate.method=minmax", [*ALL[3:10], "placement", "bundle"]),
        ("models.parts.input.mean=1", [*ALL[3:10], "placement", "bundle"]),
        ("stages.find.every=2", ["place", "bundle"]),  # placed again, with the same placement
        ("models.parts.tensorrt.workspace=64MiB", ["bundle"]),
    ],
)
def test_only_what_depends_on_a_change_is_done_again(
    path: Path, tmp_path: Path, cache: Path, override: str, made: list[str]
) -> None:
    assert Build(path, tmp_path / "a.edgert", cache, [override]).made == made


def test_one_changed_image_calibrates_again(path: Path, tmp_path: Path, cache: Path) -> None:
    write_photo(tmp_path / "photos/3.png", 99)
    assert Build(path, tmp_path / "a.edgert", cache).made[:2] == ["calibrate", "quantize"]
    write_photo(tmp_path / "photos/3.png", 3)
    assert Build(path, tmp_path / "a.edgert", cache).made == ["bundle"]  # the first one's steps are still kept


def test_changed_weights_beside_the_model_are_seen(tmp_path: Path, cache: Path) -> None:
    import onnx

    path = small_pipeline(tmp_path)
    proto = onnx.load(str(tmp_path / "parts.onnx"))
    for tensor in proto.graph.initializer:
        if tensor.name == "w":
            values = onnx.numpy_helper.to_array(tensor)
    onnx.save(proto, str(tmp_path / "parts.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    Build(path, tmp_path / "a.edgert", cache)
    assert Build(path, tmp_path / "a.edgert", cache).made == []
    data = bytearray((tmp_path / "w.bin").read_bytes())
    place = bytes(data).index(values.astype("<f4").tobytes())
    data[place : place + 4] = np.float32(1.5).tobytes()
    (tmp_path / "w.bin").write_bytes(data)
    assert Build(path, tmp_path / "a.edgert", cache).made == ALL


def test_every_damaged_entry_is_made_again_and_said(path: Path, tmp_path: Path, cache: Path) -> None:
    whole = (tmp_path / "a.edgert").read_bytes()
    for entry in cache.glob("*.bin"):
        content = bytearray(entry.read_bytes())
        content[len(content) // 2] ^= 4
        entry.write_bytes(content)
    again = Build(path, tmp_path / "a.edgert", cache)
    assert [event.state for event in again.events].count("damaged") == len(ALL) - 1
    assert (tmp_path / "a.edgert").read_bytes() == whole


def test_forms_follow_board_and_release(tmp_path: Path, cache: Path) -> None:
    path = small_pipeline(tmp_path)
    typed = Build(path, tmp_path / "a.edgert", cache, tensorrt="11.4.1").built.manifest.models["parts"]
    assert "dla" in typed.forms and "cache" not in typed.files
    gpu = Build(path, tmp_path / "a.edgert", cache, board="orin-nano-8gb").built.manifest.models["parts"]
    assert set(gpu.forms) == {"float", "ort", "gpu"} and "cache" not in gpu.files
    host = Build(path, tmp_path / "a.edgert", cache, board="host")
    assert set(host.built.manifest.models["parts"].forms) == {"float", "ort"}
    assert host.built.manifest.engines == ["onnxruntime"] and "compile" not in {one.step for one in host.events}
    half = Build(path, tmp_path / "a.edgert", cache, ["models.parts.precision=fp16"]).built.manifest.models["parts"]
    assert set(half.forms) == {"float", "fp16"} and {"higher_precision", "placement"} <= set(half.files)
    plain = Build(path, tmp_path / "a.edgert", cache, ["models.parts.precision=fp32"]).built.manifest
    assert set(plain.models["parts"].forms) == {"float"} and "tensorrt-dla" not in plain.engines


def test_a_bundle_runs_and_gives_what_its_pipeline_gives(path: Path, tmp_path: Path, cache: Path) -> None:
    image = np.random.default_rng(5).integers(0, 256, (24, 24, 3), np.uint8)
    with unpacked(tmp_path / "a.edgert") as found:
        packed = embedding(Pipeline(found.file), image)
    plain = embedding(Pipeline(path, overrides=["models.parts.precision=fp32"]), image)
    assert np.abs(packed - plain).max() < 0.05 * np.abs(plain).max()


def embedding(pipeline: Pipeline, image: np.ndarray) -> np.ndarray:
    with pipeline:
        results = pipeline.results("find", timeout=20)
        pipeline.submit(image)
        record = next(results).outputs["find"]
        pipeline.finish()
    assert isinstance(record, Embedding)
    return np.array(record.vector)


def test_several_models_are_built_side_by_side(tmp_path: Path, cache: Path) -> None:
    second = TEXT[TEXT.index("  parts:") : TEXT.index("stages:")].replace("parts:", "plates:", 1)
    text = TEXT.replace("stages:", f"{second}stages:").replace("  out:", "  read: {infer: plates, from: cam}\n  out:")
    path = small_pipeline(tmp_path, text)
    built = Build(path, tmp_path / "a.edgert", cache)
    assert set(built.built.manifest.models) == {"parts", "plates"}
    assert built.made.count("place") == 1
    subjects = {event.model for event in built.events if event.step == "verify"}
    assert subjects == {"parts", "plates"}


def test_open_dimensions_are_fixed_or_named(tmp_path: Path, cache: Path) -> None:
    path = small_pipeline(tmp_path, shape=("n", 3, "h", "w"))
    with raises(EdgertError, "dynamic dimensions", fix="size"):
        Build(path, tmp_path / "a.edgert", cache)
    sized = Build(path, tmp_path / "a.edgert", cache, ["models.parts.input.size=20x12"])
    assert sized.built.manifest.models["parts"].inputs[0].shape == (1, 3, 12, 20)
    assert "load" not in sized.made


def test_what_cannot_be_built_is_named(tmp_path: Path, cache: Path) -> None:
    path = small_pipeline(tmp_path, TEXT.replace("    calibrate: {images: photos, early_stop: false}\n", ""))
    with pytest.raises(CalibrationError, match="needs images") as caught:
        Build(path, tmp_path / "a.edgert", cache)
    assert "small.yaml:3" in caught.value.where or "models.parts" in caught.value.where
    path = small_pipeline(tmp_path)
    (tmp_path / "parts.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        Build(path, tmp_path / "a.edgert", cache)
    (tmp_path / "parts.onnx").unlink()
    with pytest.raises(ModelError, match="does not exist"):
        Build(path, tmp_path / "a.edgert", cache)
    (tmp_path / "none.yaml").write_text("stages:\n  a: {source: api}\n")
    with pytest.raises(ConfigError, match="no model to build"):
        Build(tmp_path / "none.yaml", tmp_path / "a.edgert", cache)
    assert not (tmp_path / "a.edgert").exists()


def test_an_operator_that_nothing_runs_is_named_with_what_can_be_done(tmp_path: Path, cache: Path) -> None:
    import onnx

    path = small_pipeline(tmp_path)
    proto = onnx.load(str(tmp_path / "parts.onnx"))
    end = proto.graph.output[0].name
    proto.graph.node[-1].output[0] = "last"
    proto.graph.node.append(onnx.helper.make_node("Frobnicate", ["last"], [end], name="the_odd_one"))
    onnx.save(proto, str(tmp_path / "parts.onnx"))
    with raises(BuildError, why="node 'the_odd_one' is Frobnicate, which opset") as caught:
        Build(path, tmp_path / "a.edgert", cache)
    assert caught.value.where.endswith("parts.onnx") and "edgert.op" in caught.value.fix
    assert not (tmp_path / "a.edgert").exists()


def test_a_form_beyond_its_tolerance_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.compiler.model_steps.TOLERANCE", {"float": 1e-3, "ort": 0.7, "gpu": 0.7, "dla": 1e-9})
    with raises(BuildError, "the dla form of model 'parts'", fix="accuracy:"):
        Build(small_pipeline(tmp_path), tmp_path / "a.edgert", cache)
    assert not (tmp_path / "a.edgert").exists()


def test_a_stopped_build_goes_on_where_it_was(tmp_path: Path, cache: Path) -> None:
    path, stop = small_pipeline(tmp_path), threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        Build(path, tmp_path / "a.edgert", cache, stop=stop)
    seen = list[str]()

    def after_two(progress: edgert.Progress) -> None:
        seen.append(progress.state)
        if seen.count("done") == 2:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        edgert.build(path, tmp_path / "a.edgert", board=JETSON, cache=tmp_path / "other", on_progress=after_two)
    assert seen.count("done") == 2 and not (tmp_path / "a.edgert").exists()
    assert Build(path, tmp_path / "a.edgert", cache).made == ALL


RANGES = "{resize: stretch, std: 255, shape: {H: [8, 16, 32], W: [8, 16, 32]}}"
FLOAT16 = TEXT.replace("int8\n    calibrate: {images: photos, early_stop: false}", "fp16")


def dynamic(folder: Path, placement: str = "auto", text: str = FLOAT16) -> Path:
    ranged = text.replace("{resize: stretch, std: 255}", f"{RANGES}\n    placement: {placement}")
    return small_pipeline(folder, ranged, shape=(1, 3, "h", "w"))


def placement_in(bundle: Path) -> tuple[list[object], dict[str, Any], str]:
    with open_bundle(bundle) as opened:
        (model,) = opened.manifest.models.values()
        text = opened.read(opened.manifest.pipeline).decode()
        return list(model.inputs[0].shape), json.loads(opened.read(model.files["placement"])), text


def test_sizes_of_a_range_stay_open_for_a_gpu(tmp_path: Path, cache: Path) -> None:
    Build(dynamic(tmp_path, "gpu"), tmp_path / "a.edgert", cache)
    shape, placement, text = placement_in(tmp_path / "a.edgert")
    assert shape == [1, 3, "h", "w"] and placement["pinned"] == ""
    assert placement["spans"]["x"] == {"least": [1, 3, 8, 8], "usual": [1, 3, 16, 16], "most": [1, 3, 32, 32]}
    assert "shape" not in text  # ONNX Runtime's own form has the usual size


def test_an_engine_of_such_a_bundle_allows_them_all(tmp_path: Path, cache: Path) -> None:
    Build(dynamic(tmp_path, "gpu"), tmp_path / "a.edgert", cache)
    with unpacked(tmp_path / "a.edgert") as found, open_bundle(tmp_path / "a.edgert") as bundle:
        folder = tmp_path / "unpacked"
        bundle.extract(folder)
        source = BundleModel(folder, bundle.manifest, "parts", found.file.config.models["parts"])
        (spec,) = engine_specs(source, "tensorrt", library_of(Double("10.3")))
    assert spec.request.profiles == ({"x": Span((1, 3, 8, 8), (1, 3, 16, 16), (1, 3, 32, 32))},)
    assert spec.request.precision == "fp16" and spec.profiles == {"default": {"x": (1, 3, 16, 16)}}


def test_float16_as_a_model_of_its_own_pins_them(tmp_path: Path, cache: Path) -> None:
    Build(dynamic(tmp_path, "gpu"), tmp_path / "a.edgert", cache, tensorrt="11.4")
    shape, placement, _ = placement_in(tmp_path / "a.edgert")
    assert shape == [1, 3, 16, 16] and placement["pinned"].startswith("TensorRT 11.4.0 takes float16 as a model")


def test_a_dla_pins_them_to_the_usual_one_and_says_so(tmp_path: Path, cache: Path) -> None:
    built = Build(dynamic(tmp_path), tmp_path / "a.edgert", cache)
    shape, placement, text = placement_in(tmp_path / "a.edgert")
    assert shape == [1, 3, 16, 16] and placement["spans"] == {} and "shape" not in text
    assert placement["pinned"] == "a DLA takes one shape only; placement: gpu allows them all"
    assert "built only at the usual size of input: shape: a DLA takes one shape only" in built.details


def test_int8_pins_them_as_well(tmp_path: Path, cache: Path) -> None:
    Build(dynamic(tmp_path, "gpu", TEXT), tmp_path / "a.edgert", cache)
    shape, placement, _ = placement_in(tmp_path / "a.edgert")
    assert shape == [1, 3, 16, 16] and placement["pinned"].startswith("INT8 ranges belong to the size")


def test_a_range_for_a_size_that_the_model_fixes_is_refused(tmp_path: Path, cache: Path) -> None:
    path = dynamic(tmp_path)
    small_pipeline(tmp_path, path.read_text(), shape=(1, 3, 16, "w"))
    with pytest.raises(ModelError, match="cannot have H from 8 to 32"):
        Build(path, tmp_path / "a.edgert", cache)


def test_a_bundle_with_pinned_sizes_runs_here(tmp_path: Path, cache: Path) -> None:
    Build(dynamic(tmp_path, "gpu"), tmp_path / "a.edgert", cache)
    with unpacked(tmp_path / "a.edgert") as bundle:
        assert embedding(Pipeline(bundle.file), np.zeros((24, 24, 3), np.uint8)).shape == (4,)


TOLD = """    precision: int8
    calibrate: {images: photos, early_stop: false}
"""


def quantized(tmp_path: Path, cache: Path, text: str = TEXT) -> Path:
    Build(small_pipeline(tmp_path / "float"), tmp_path / "float.edgert", cache, tensorrt="11.4.1")
    path = small_pipeline(tmp_path / "qdq", text.replace(TOLD, ""))
    with open_bundle(tmp_path / "float.edgert") as bundle:
        form = bundle.read(bundle.manifest.models["parts"].forms["gpu"])
    (tmp_path / "qdq" / "parts.onnx").write_bytes(form)
    return path


def test_a_model_that_came_quantized_brings_its_scales_to_a_dla(tmp_path: Path, cache: Path) -> None:
    made = Build(quantized(tmp_path, cache), tmp_path / "a.edgert", cache, ["models.parts.placement=dla"])
    steps = ["load", "shapes", "split", "rewrite", "lower", "survey", "verify", "place", "placement", "bundle"]
    assert made.made == steps
    with open_bundle(tmp_path / "a.edgert") as bundle, open_bundle(tmp_path / "float.edgert") as other:
        model, first = bundle.manifest.models["parts"], other.manifest.models["parts"]
        assert set(model.forms) == {"float", "ort", "gpu"} and model.precision == "int8"
        cached = parse_cache(bundle.read(model.files["cache"]).decode())
        (tmp_path / "ranges.json").write_bytes(other.read(first.files["ranges"]))
        table = load_table(tmp_path / "ranges.json", model_of(other.read(first.forms["float"]), Path("float")))
        assert cached["x"] == pytest.approx(table.amax(("x",)) / 127, rel=1e-6)
        placed = json.loads(bundle.read(model.files["placement"]))["dla"]["nodes"]
        assert all(node["op"] not in ("QuantizeLinear", "DequantizeLinear") for node in placed)
        folder = tmp_path / "unpacked"
        bundle.extract(folder)
    with unpacked(tmp_path / "a.edgert") as found:
        source = BundleModel(folder, bundle.manifest, "parts", found.file.config.models["parts"])
        spec, *_ = engine_specs(source, "tensorrt-dla", library_of(Double("10.3")))
    assert spec.request.precision == "int8" and "x: " in spec.request.calibration


def test_one_that_cannot_be_taken_apart_stays_on_the_gpu_and_says_why(tmp_path: Path, cache: Path) -> None:
    path = quantized(tmp_path, cache)
    uneven(path.parent / "parts.onnx")
    made = Build(path, tmp_path / "a.edgert", cache)
    assert "no scales for a DLA: node" in made.details and "zero point 3" in made.details
    assert set(made.built.manifest.models["parts"].forms) == {"float"}
    with raises(ModelError, "zero point 3", says=("parts.onnx", "symmetric")):
        Build(path, tmp_path / "b.edgert", cache, ["models.parts.placement=dla"])


def uneven(path: Path) -> None:
    """Moves the zero points of a file's Q/DQ nodes off the middle."""
    proto = onnx.load(path)
    zeros = {one.input[2] for one in proto.graph.node if one.op_type == "QuantizeLinear"}
    for tensor in proto.graph.initializer:
        if tensor.name in zeros:
            tensor.CopyFrom(numpy_helper.from_array(np.array(3, np.int8), tensor.name))
    onnx.save(proto, path)


def check(pipeline: str, folder: Path, points: int) -> None:
    whole, whole_s = uninterrupted(pipeline, folder / "whole")
    found = list(kills(pipeline, folder / "killed", points, whole_s, seed=points))
    assert [kill.after_s for kill in found if kill.bundle != whole] == []
    assert len(found) == points
    assert [kill.left for kill in found if kill.left not in (b"", whole)] == []
    assert [kill.orphans for kill in found if kill.orphans] == []
    with open_bundle(folder / "whole" / "a.edgert") as bundle:
        assert bundle.manifest.board == "orin-nx-16gb"


@pytest.mark.slow
def test_a_small_build_killed_at_two_points(tmp_path: Path) -> None:
    check(str(small_pipeline(tmp_path / "pipeline")), tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_demo_killed_at_twenty_points(tmp_path: Path) -> None:
    check("hello", tmp_path, 20)
