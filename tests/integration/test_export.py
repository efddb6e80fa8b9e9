"""Models that leave edgert: what is written runs, and says of itself what is true."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from edgert.backend.tensorrt import engine_cache as made
from edgert.board.host import saturates_bytes
from edgert.bundle.bundle import open_bundle, save_bundle
from edgert.bundle.manifest import CompiledEntry, EngineEntry, Manifest
from edgert.errors import ArtifactError, BuildError, ConfigError, EdgertError
from edgert.exporter.export import Exported, ExportOptions, check_written, write_export
from edgert.exporter.source import Source, open_source
from edgert.graph import load, to_bytes
from edgert.zip_archive import member_of
from tests.helpers import models
from tests.helpers.command import in_process
from tests.helpers.errors import Exactly, raises
from tests.helpers.small_pipeline import TEXT, Build, network, small_pipeline
from tests.helpers.triton import parsed

JETSON = "orin-nx-16gb"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline and its bundles: for a board with each dialect, and for any machine."""
    folder = tmp_path_factory.mktemp("export")
    file = small_pipeline(folder / "small", TEXT.replace("api}", "api}\n  mark: {draw: boxes, from: find}"))
    for name, board, tensorrt in (
        ("weak", JETSON, "10.3"),
        ("strong", "agx-orin-64gb", "11.4.1"),
        ("host", "host", None),
    ):
        overrides = (
            ["models.parts.placement=dla0", "models.parts.tensorrt.workspace=64MiB"]
            if tensorrt
            else ["models.parts.threads=2", "models.parts.tuning.arena=false"]
        )
        Build(file, folder / f"{name}.edgert", folder / "cache", overrides, board=board, tensorrt=tensorrt)
    return folder


@pytest.fixture(autouse=True)
def own_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(home / "own"))


@pytest.fixture
def opened(home: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda name, **options: stack.enter_context(open_source(home / name, **options))


CHECKS = b'{"placement": {"source": "log", "misplaced": [], "layers": 1, "reformats": 0, "loadables": 0}}'


def export(source: Source, format: Any, output: Path, **options: Any) -> Exported:
    return write_export(source, format, output, ExportOptions(**options))


def run(path: Path, feed: Any) -> Any:
    options = onnxruntime.SessionOptions()
    if saturates_bytes():
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: feed})[0]


FEED = np.random.default_rng(1).random((1, 3, 16, 16), "f4")


@pytest.mark.parametrize(
    ("form", "target", "apart"),
    [
        ("float", None, 1e-6),
        ("fp16", None, 1e-2),
        ("fit", None, 1e-3),
        *(("int8-qdq", one, 0.1) for one in ("ort", "dla")),
    ],
)
def test_plain_onnx_computes_what_the_model_does(
    opened: Any, home: Path, tmp_path: Path, form: Any, target: Any, apart: float
) -> None:
    left = export(opened("weak.edgert"), "onnx", tmp_path / "out.onnx", form=form, target=target)
    assert left.files == (tmp_path / "out.onnx",)
    wanted = run(home / "small" / "parts.onnx", FEED)
    made = run(left.files[0], FEED)
    assert float(np.abs(made - wanted).max()) <= apart * float(np.abs(wanted).max())
    kinds = {node.op_type for node in onnx.load(left.files[0]).graph.node}
    assert ("QuantizeLinear" in kinds or "DequantizeLinear" in kinds) == (
        target == "dla"
    )  # for ONNX Runtime nothing of it is worth it
    limitations = "\n".join(left.limitations)
    assert "before it: stretch" in limitations and "mark (draw)" in limitations


def test_without_a_form_it_is_the_one_that_was_built(opened: Any, home: Path, tmp_path: Path) -> None:
    left = export(opened("host.edgert"), "onnx", tmp_path)
    assert left.files == (tmp_path / "parts.onnx",)
    with open_bundle(home / "host.edgert") as bundle:
        built = bundle.read(bundle.manifest.models["parts"].forms["ort"])
    assert run(left.files[0], FEED).tobytes() == onnxruntime.InferenceSession(built).run(None, {"x": FEED})[0].tobytes()


def test_a_pipeline_is_built_on_the_way(home: Path, tmp_path: Path) -> None:
    events: list[Any] = []
    with open_source(
        home / "small" / "small.yaml", overrides=("models.parts.precision=fp16",), on_progress=events.append
    ) as source:
        left = export(source, "onnx", tmp_path)
    assert {event.step for event in events} >= {"load", "quantize", "bundle"}
    types = {item.data_type for item in onnx.load(left.files[0]).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types


def test_an_onnx_file_leaves_whole_though_its_weights_stand_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "my model (1).onnx"
    onnx.save(network((1, 3, 16, 16)).proto, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    with open_source(path) as source:
        assert (source.board, source.items[0].name) == ("host", "my-model--1-")
        left = export(source, "onnx", tmp_path / "out")
    (tmp_path / "weights.bin").unlink()
    assert run(left.files[0], FEED).shape == (1, 4, 1, 1) and left.limitations == ()


def test_a_triton_repository_for_a_processor(opened: Any, tmp_path: Path) -> None:
    left = export(opened("host.edgert"), "triton", tmp_path)
    names = [path.relative_to(tmp_path).as_posix() for path in left.files]
    assert names == ["parts/1/model.onnx", "parts/labels.txt", "parts/config.pbtxt"]
    config = parsed(left.files[2].read_text())
    session = onnxruntime.InferenceSession(str(left.files[0]))
    for ports, limitations in ((session.get_inputs(), config.input), (session.get_outputs(), config.output)):
        assert [(port.name, port.shape) for port in ports] == [(one.name, list(one.dims)) for one in limitations]
    assert config.max_batch_size == 0 and config.parameters["intra_op_thread_count"].string_value == "2"
    assert config.instance_group[0].kind == config.instance_group[0].Kind.Value("KIND_CPU")
    assert left.files[1].read_text() == "bolt\nnut\n" and "after it: embed none" in left.files[2].read_text()
    assert "parts, tuning: arena=false" in left.limitations


def test_a_triton_repository_for_a_board(opened: Any, tmp_path: Path) -> None:
    left = export(opened("weak.edgert"), "triton", tmp_path)
    config = parsed(left.files[-1].read_text())
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.parameters["precision_mode"] == "INT8"
    assert config.instance_group[0].kind == config.instance_group[0].Kind.Value("KIND_GPU")
    assert any("its placement on dla0" in line for line in left.limitations)
    assert f"parts, tensorrt: workspace={64 * 2**20}" in left.limitations
    assert parsed(export(opened("weak.edgert"), "triton", tmp_path, device="cpu").files[-1].read_text()).instance_group[
        0
    ].kind == config.instance_group[0].Kind.Value("KIND_CPU")


def test_an_open_batch_becomes_triton_s(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(to_bytes(network(("n", 3, 16, 16))))
    with open_source(tmp_path / "net.onnx") as source:
        left = export(source, "triton", tmp_path / "out", max_batch=32)
    config = parsed(left.files[-1].read_text())
    assert config.max_batch_size == 32 and list(config.input[0].dims) == [3, 16, 16]


def with_engines(path: Path, output: Path, machines: tuple[str, ...], weights: tuple[int, ...]) -> Path:
    """A bundle into which boards packed engines, the second on a DLA."""
    with open_bundle(path) as bundle:
        members = {name: bundle.read(name) for name in bundle.manifest.members}
        manifest: Manifest = bundle.manifest
    compiled = {}
    for machine in machines:
        engines = []
        for number, weight in enumerate(weights):
            base = f"engines/{machine}/parts-{number}"
            built = {"facts": {}, "attempts": [], "result": {"library": "10.3.0", "seconds": 1.0}}
            record = {"schema": made._SCHEMA, "placement": {"Conv_0": "dla1"} if number else {}, **built}
            files = {"plan": b"plan %d" % number, "json": json.dumps(record).encode(), "engine_checks.json": CHECKS}
            members |= {f"{base}.{ending}": content for ending, content in files.items()}
            one = EngineEntry(
                plan=f"{base}.plan", record=f"{base}.json", checks=f"{base}.engine_checks.json", weight=weight
            )
            engines.append(one)
        compiled[machine] = CompiledEntry(facts={"TensorRT": "10.3.0"}, engines={"parts": engines} if engines else {})
    listed = {name: member_of(content) for name, content in members.items()}
    save_bundle(output, manifest.model_copy(update={"compiled": compiled, "members": listed}), members)
    return output


def test_compiled_engines_are_served_as_they_are(home: Path, tmp_path: Path) -> None:
    with open_source(with_engines(home / "weak.edgert", tmp_path / "one.edgert", ("a",), (1,))) as source:
        left = export(source, "triton", tmp_path / "one")
    assert (tmp_path / "one/parts/1/model.plan").read_bytes() == b"plan 0"
    config = parsed((tmp_path / "one/parts/config.pbtxt").read_text())
    assert (config.backend, config.max_batch_size) == ("tensorrt", 0) and not config.optimization.ByteSize()
    assert not config.instance_group[0].secondary_devices
    assert any("an engine only runs on the machine that compiled it" in line for line in left.limitations)
    with open_source(with_engines(home / "weak.edgert", tmp_path / "two.edgert", ("a",), (66, 34))) as source:
        left = export(source, "triton", tmp_path / "two")
    second = parsed((tmp_path / "two/parts-1-dla1/config.pbtxt").read_text())
    assert second.instance_group[0].secondary_devices[0].device_id == 1 and (tmp_path / "two/parts-0-gpu").is_dir()
    assert any("clients send 34 of 100 frames here" in line for line in left.limitations)


def test_a_model_that_a_board_did_not_compile_has_no_engines(home: Path, tmp_path: Path) -> None:
    with open_source(with_engines(home / "weak.edgert", tmp_path / "none.edgert", ("a",), ())) as source:
        assert source.items[0].plans == ()


def test_engines_of_two_machines_are_not_guessed_among(home: Path, tmp_path: Path) -> None:
    path = with_engines(home / "weak.edgert", tmp_path / "both.edgert", ("a", "b"), (1,))
    with raises(ConfigError, "cannot tell which engines to export", why=Exactly("a, b")), open_source(path):
        pass


def asked_of_trtexec(folder: Path) -> list[list[str]]:
    """What ``build.sh`` asks of trtexec, command by command; every file it names must be there."""
    double = folder / "trtexec"
    double.write_text('#!/bin/sh\nprintf "%s\\n" "$@" end\n')
    double.chmod(0o755)
    command = [str(folder / "build.sh")]
    done = subprocess.run(
        command, env={"TRTEXEC": str(double), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    commands = [part.split("\n") for part in done.stdout.split("end\n") if part]
    for options in commands:
        for option in options:
            if option.startswith(("--onnx=", "--calib=")):
                assert (folder / option.partition("=")[2]).is_file()
    return commands


def test_trtexec_of_a_weakly_typed_release(opened: Any, home: Path, tmp_path: Path) -> None:
    left = export(opened("weak.edgert"), "trtexec", tmp_path)
    (options,) = asked_of_trtexec(tmp_path)
    assert {"--int8", "--fp16", "--useDLACore=0", "--allowGPUFallback", "--memPoolSize=workspace:64"} <= set(options)
    assert (tmp_path / "parts/dla0.cache").read_text().startswith("TRT-100300-EntropyCalibration2\n")
    assert not any(node.op_type == "QuantizeLinear" for node in onnx.load(tmp_path / "parts/dla0.onnx").graph.node)
    assert left.files[-1].name == "build.sh" and any("before it" in line for line in left.limitations)


def test_trtexec_of_a_strongly_typed_release(opened: Any, tmp_path: Path) -> None:
    export(opened("strong.edgert"), "trtexec", tmp_path)
    (options,) = asked_of_trtexec(tmp_path)
    assert {"--adjustForDLA", "--useDLACore=0", "--allowGPUFallback"} <= set(options)
    assert not any(option.startswith(("--int8", "--fp16", "--calib", "--layerPrecisions")) for option in options)
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(tmp_path / "parts/dla0.onnx").graph.node)


def test_trtexec_of_an_onnx_file(home: Path, tmp_path: Path) -> None:
    with open_source(home / "small" / "parts.onnx", tensorrt="8.6.2") as source:
        export(source, "trtexec", tmp_path)
    (options,) = asked_of_trtexec(tmp_path)
    assert "--onnx=parts/gpu.onnx" in options and not any(option.startswith("--useDLA") for option in options)


def test_files_that_stand_there_are_replaced_and_others_stay(opened: Any, tmp_path: Path) -> None:
    export(opened("host.edgert"), "triton", tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "parts/config.pbtxt").write_text("old")
    export(opened("host.edgert"), "triton", tmp_path)
    assert (tmp_path / "other").is_dir() and parsed((tmp_path / "parts/config.pbtxt").read_text()).name == "parts"


@pytest.mark.parametrize(
    ("format", "options", "what", "fix"),
    [
        ("triton", {"form": "fp16"}, "--form has no effect with --format triton", "leave --form out"),
        ("onnx", {"device": "gpu"}, "--device has no effect with --format onnx", "leave --device out"),
        ("trtexec", {"max_batch": 2}, "--max-batch has no effect with --format trtexec", "leave --max-batch out"),
        (
            "trtexec",
            {},
            "which TensorRT the commands are for",
            "build it for a board: edgert build PIPELINE --board NAME",
        ),
        ("onnx", {"form": "int8-qdq", "target": "dla"}, "no INT8 form of model 'parts' for dla", "--target ort"),
        ("triton", {"max_batch": 8}, "cannot be served in batches of 8", "leave --max-batch out"),
    ],
)
def test_options_that_cannot_be(opened: Any, tmp_path: Path, format: Any, options: Any, what: str, fix: str) -> None:
    with raises(EdgertError, what, fix=fix):
        export(opened("host.edgert"), format, tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("weak.edgert", {"board": JETSON}, "--board is not for a bundle"),
        ("weak.edgert", {"tensorrt": "10.7"}, "--trt is not for a bundle"),
        ("small/parts.onnx", {"overrides": ("board=host",)}, "--set is not for an ONNX file"),
        ("small/parts.onnx", {"board": "orin-nx-61gb"}, "orin-nx-61gb"),
    ],
)
def test_sources_that_cannot_be(home: Path, name: str, options: Any, what: str) -> None:
    with raises(ConfigError, what, fix=True), open_source(home / name, **options):
        pass


def test_a_float_file_has_no_int8_form(home: Path, tmp_path: Path) -> None:
    refusal = raises(BuildError, "no INT8 form of model 'parts'", fix="edgert quantize parts.onnx")
    with open_source(home / "small" / "parts.onnx") as source, refusal:
        export(source, "onnx", tmp_path, form="int8-qdq")


def test_no_model_of_that_name(home: Path) -> None:
    wanted = pytest.raises(ConfigError, match="no model 'part'; did you mean 'parts'")
    with wanted, open_source(home / "small" / "parts.onnx", model="part"):
        pass


def test_several_models_do_not_fit_into_one_file(home: Path, tmp_path: Path) -> None:
    text = TEXT.replace("stages:", "  other: {onnx: parts.onnx, task: {embed: none}}\nstages:")
    file = small_pipeline(tmp_path / "two", text.replace("precision: int8", "precision: fp32"))
    refusal = raises(ConfigError, "cannot write 2 models to one file", why=Exactly("other, parts"))
    with open_source(file) as source, refusal:
        export(source, "onnx", tmp_path / "one.onnx")
    with open_source(file, model="other") as source:
        left = export(source, "onnx", tmp_path / "one.onnx")
    assert left.files == (tmp_path / "one.onnx",)


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        (("--format", "trtexec"), "which TensorRT the commands are for", "--board NAME; edgert boards lists them"),
        (("--format", "trtexec", "--form", "fp16"), "--form has no effect with --format trtexec", "leave --form out"),
        (("--format", "onnx", "--model", "part"), "no model 'part'; did you mean 'parts'?", "models: parts"),
    ],
)
def test_what_cannot_leave_is_told_before_the_build(
    home: Path, tmp_path: Path, options: tuple[str, ...], what: str, fix: str
) -> None:
    cache = tmp_path / "cache"
    file = str(home / "small" / "small.yaml")
    done = in_process("export", file, *options, "-o", "out", cwd=tmp_path, env={"EDGERT_CACHE": str(cache)})
    assert done.returncode == 1 and what in done.stderr and fix in done.stderr
    assert not cache.exists() and not (tmp_path / "out").exists()


def test_a_file_is_no_folder(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with raises(ArtifactError, "cannot write", why=Exactly("it is a file")):
        export(opened("host.edgert"), "triton", tmp_path / "taken")


def test_what_was_written_wrong_is_found(opened: Any, home: Path, tmp_path: Path) -> None:
    item = opened("host.edgert").items[0]
    (tmp_path / "conv.onnx").write_bytes(to_bytes(models.conv((1, 3, 16, 16))))
    shutil.copy(home / "small" / "parts.onnx", tmp_path / "same.onnx")
    model = load(home / "small" / "parts.onnx")
    check_written(tmp_path / "same.onnx", item, model)
    changed = onnx.load(tmp_path / "same.onnx")
    changed.graph.initializer[0].raw_data = bytes(len(changed.graph.initializer[0].raw_data))
    onnx.save(changed, tmp_path / "same.onnx")
    with pytest.raises(ArtifactError, match="differ from those of the written model"):
        check_written(tmp_path / "same.onnx", item, model)


def test_typed_at_a_prompt(home: Path, tmp_path: Path) -> None:
    bundle = str(home / "weak.edgert")
    done = in_process("export", bundle, "--format", "trtexec", "-o", "out", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    limitations = json.loads((tmp_path / "out.json").read_text())
    assert limitations["files"][-1] == "out/build.sh" and "What trtexec cannot express:" in done.stdout
    assert all(line in done.stdout for line in limitations["limitations"])
    wrong = in_process("export", bundle, "--format", "tritn", "-o", "out", cwd=tmp_path)
    assert wrong.returncode == 1 and "no 'tritn'; did you mean 'triton'?" in wrong.stderr
    assert "one of triton, onnx, trtexec" in wrong.stderr
