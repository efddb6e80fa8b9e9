"""A pipeline file without ``engines:`` on machines with and without a GPU: what runs it, and what is said of it."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from edgert.assemble import assemble, default_engines, with_default_engines
from edgert.assemble.default_engines import has_gpu
from edgert.assemble.engines import ChainEngines
from edgert.backend.tensorrt import library as version
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.board import Machine, devices, record
from edgert.cli import app
from edgert.compiler.build_pipeline import build
from edgert.compiler.unpack import unpacked
from edgert.config import PipelineFile, load_pipeline
from edgert.errors import BuildError, DeviceError
from edgert.graph import Model, load, to_bytes
from edgert.pipeline import Pipeline
from edgert.quantization.precision import in_precision
from tests.helpers.trt_bench import HERE, ORIN, Bench
from tests.helpers.trt_bundle import PIPELINE, bench, model

GPU = devices.CudaDriver("12.6", (devices.GpuDevice("Orin", "8.7", 2**33),))
NO_CUDA = "this ONNX Runtime has no CUDA provider"
COMPILED_ONCE = "compiled once: parts (how long is not known yet); engines: [onnxruntime] keeps to the CPU"


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default_engines, "cuda_driver", lambda: GPU)


def written(folder: Path, text: str = PIPELINE, **section: str) -> PipelineFile:
    (folder / "models/parts").mkdir(parents=True, exist_ok=True)
    (folder / "models/parts/model.onnx").write_bytes(to_bytes(model()))
    further = "".join(f"    {key}: {value}\n" for key, value in section.items())
    (folder / "p.yaml").write_text(text.replace("    input:", f"{further}    input:"), encoding="utf-8")
    return load_pipeline(folder / "p.yaml")


def compiled(file: PipelineFile, on: Bench, monkeypatch: pytest.MonkeyPatch, strict: bool = False) -> dict[str, Any]:
    """What the engine of the model says of itself, on the machine of a bench."""
    monkeypatch.setattr("edgert.assemble.engines.detect", lambda: ORIN)
    engines = ChainEngines(file, lambda _, config, form: in_precision(config, target=form), strict, None, on.backend)
    engine = engines.compile("parts", file.config.models["parts"], 1, 1)
    engine.close()
    return dict(engine.info)


def missing(name: str = "tensorrt", here: Machine = ORIN) -> Callable[[], version.Library]:
    def load() -> version.Library:
        raise version.missing_error(ImportError(f"No module named {name!r}"), here, "auto")

    return load


class TestJetson:
    def test_tensorrt_in_fp16_compiled_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        on = bench()
        file, line = with_default_engines(written(tmp_path), machine=ORIN, trt=on.backend)
        assert line == f"engines: TensorRT 10.3.0 in FP16 on the GPU; {COMPILED_ONCE}"
        assert file.config.engines == ("tensorrt", "onnxruntime-cuda", "onnxruntime") and file.passed_over == {}
        info = compiled(file, on, monkeypatch)
        assert (info["engine"], info["precision"], info["skipped"]) == ("tensorrt", "fp16", [])
        assert on.requests[0].precision == "fp16"
        again = with_default_engines(written(tmp_path), machine=ORIN, trt=bench().backend)[1]
        assert again == "engines: TensorRT 10.3.0 in FP16 on the GPU"
        assert compiled(file, bench(), monkeypatch)["cached"]

    def test_another_release_compiles_again_and_the_time_it_took_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file, _ = with_default_engines(written(tmp_path), machine=ORIN, trt=bench().backend)
        compiled(file, bench(answer={"seconds": 143.2}), monkeypatch)
        _, line = with_default_engines(written(tmp_path), machine=ORIN, trt=bench("10.7").backend)
        assert "TensorRT 10.7.0" in line and "compiled once: parts (143 s with TensorRT 10.3.0)" in line

    def test_without_tensorrt_the_line_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("edgert.backend.tensorrt.trt_backend.load", missing())
        file, line = with_default_engines(written(tmp_path), machine=ORIN, trt=TrtBackend(machine=ORIN))
        assert file.config.engines == ("onnxruntime",) and "\n" not in line
        assert line.startswith(
            "engines: ONNX Runtime on the CPU; not tensorrt: TensorRT cannot be used here: No module"
        )
        assert "sudo apt install nvidia-jetpack" in line and f"not onnxruntime-cuda: {NO_CUDA}" in line
        assert "pip install onnxruntime-gpu" in line and "compiled" not in line

    def test_a_tensorrt_that_is_too_old_is_passed_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def old() -> version.Library:
            return version.library_of(SimpleNamespace(__name__="tensorrt", __version__="8.5.2"))

        monkeypatch.setattr("edgert.backend.tensorrt.trt_backend.load", old)
        _, line = with_default_engines(written(tmp_path), machine=ORIN, trt=TrtBackend(machine=ORIN))
        assert "not tensorrt: TensorRT 8.5.2 cannot be used: edgert supports 8.6, 10 and 11 (update JetPack" in line

    def test_the_dla_runs_what_is_placed_on_it(self, tmp_path: Path) -> None:
        placed = written(tmp_path, placement="dla")
        file, line = with_default_engines(placed, machine=ORIN, trt=bench().backend)
        assert file.config.engines[0] == "tensorrt-dla"
        assert line == "engines: TensorRT 10.3.0 with the DLA, as placement: asks for"

    @pytest.mark.parametrize("which", ["nano", "mode"])
    def test_without_a_dla_the_reason_is_said(self, tmp_path: Path, which: str) -> None:
        orin = record.board("orin-nx-16gb")
        without = orin.model_copy(
            update={"modes": [orin.usual_mode.model_copy(update={"name": "OFF", "dla_cores": 0})]}
        )
        nano = replace(ORIN, name="orin-nano-8gb", board=record.board("orin-nano-8gb"))
        here, why = (
            (nano, "has no DLA") if which == "nano" else (replace(ORIN, mode="OFF", board=without), "turns the DLA off")
        )
        file, line = with_default_engines(written(tmp_path, placement="dla"), machine=here, trt=bench().backend)
        assert file.config.engines[0] == "tensorrt" and list(file.passed_over or ()) == ["tensorrt-dla"]
        assert why in line and line.startswith("engines: TensorRT 10.3.0 in FP16 on the GPU; not tensorrt-dla: ")

    def test_what_was_placed_on_it_then_runs_on_the_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        on, nano = bench(), replace(ORIN, name="orin-nano-8gb", board=record.board("orin-nano-8gb"))
        monkeypatch.setattr("edgert.assemble.engines.detect", lambda: nano)
        monkeypatch.setattr("edgert.backend.tensorrt.trt_backend.TrtBackend", lambda **_: on.backend)
        file, _ = with_default_engines(written(tmp_path, placement="dla"), machine=nano, trt=on.backend)
        assembly = assemble(file)
        assembly.close()
        info = assembly.engines["parts"].info
        assert info["engine"] == "tensorrt" and "has no DLA" in info["skipped"][0]["why"]


class TestWorkstation:
    def test_onnx_runtime_with_cuda_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edgert.backend.tensorrt.trt_backend.load", missing(here=HERE))
        monkeypatch.setattr("edgert.backend.ort.cuda.why_not", lambda: "")
        file, line = with_default_engines(written(tmp_path), machine=HERE, trt=TrtBackend(machine=HERE))
        assert file.config.engines == ("onnxruntime-cuda", "onnxruntime")
        assert line.startswith("engines: ONNX Runtime on the GPU; not tensorrt: ") and "pip install tensorrt" in line

    @pytest.mark.parametrize(("compute", "is_taken"), [("8.9", True), ("9.0", False)])
    def test_tensorrt_rtx_is_taken_where_it_supports_the_gpu(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: str, is_taken: bool
    ) -> None:
        driver = devices.CudaDriver("13.0", (devices.GpuDevice("RTX", compute, 2**33),))
        monkeypatch.setattr("edgert.backend.tensorrt.trt_backend.cuda_driver", lambda: driver)
        monkeypatch.setattr("edgert.backend.ort.cuda.why_not", lambda: "")
        on = bench("rtx-1.4", machine=HERE)
        file, line = with_default_engines(written(tmp_path), machine=HERE, trt=on.backend)
        if is_taken:
            assert line.startswith("engines: TensorRT-RTX 1.4.0.76 in FP16 on the GPU; compiled once: parts")
            assert file.config.engines[0] == "tensorrt"
            return
        assert file.config.engines == ("onnxruntime-cuda", "onnxruntime")
        assert line == (
            "engines: ONNX Runtime on the GPU; not tensorrt: 9.0 is not a supported capability of TensorRT-RTX 1.4.0.76"
            ", which lists 7.5, 8.0, 8.6, 8.9, 12.0 (engines: [tensorrt] tries it anyway)"
        )

    def test_without_pycuda(self, tmp_path: Path) -> None:
        def no_pycuda() -> Any:
            raise DeviceError("PyCUDA is not installed", why="No module named 'pycuda'", fix="pip install pycuda")

        trt = TrtBackend(machine=HERE, library=Bench().backend.library, device=no_pycuda)
        file, line = with_default_engines(written(tmp_path), machine=HERE, trt=trt)
        assert file.config.engines == ("onnxruntime",)
        assert "not tensorrt: PyCUDA is not installed: No module named 'pycuda' (pip install pycuda)" in line

    def test_a_driver_that_does_not_work_is_a_gpu_that_is_missed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = devices.CudaDriver("12.6", (), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
        monkeypatch.setattr(default_engines, "cuda_driver", lambda: broken)
        assert has_gpu()


class TestWithoutGpu:
    @pytest.mark.parametrize("driver", [None, devices.CudaDriver("12.6", ())])
    def test_nothing_changes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: devices.CudaDriver | None, caplog: Any
    ) -> None:
        monkeypatch.setattr(default_engines, "cuda_driver", lambda: driver)
        monkeypatch.setattr(default_engines, "why_not", pytest.fail)
        file = written(tmp_path)
        found, line = with_default_engines(file)
        assert found is file and not line
        with caplog.at_level(logging.INFO), Pipeline(file) as pipeline:
            assert "engine" not in pipeline.run().engine["parts"]
        assert not [one for one in caplog.messages if "engine" in one]

    def test_nothing_is_imported_for_what_is_not_there(self, tmp_path: Path) -> None:
        code = (
            "import sys, json, edgert, edgert.pipeline\n"
            "assert 'edgert.assemble' not in sys.modules, 'a GPU starts while it is imported'\n"
            "from edgert.assemble import default_engines\n"
            "default_engines.cuda_driver = lambda: None\n"
            f"with edgert.Pipeline({str(written(tmp_path).document.path)!r}) as pipeline: pipeline.run()\n"
            "print(json.dumps([one for one in ('tensorrt', 'pycuda', 'edgert.backend.tensorrt', 'edgert.board.record',"
            " 'edgert.budget.watch', 'edgert.stages.gpu.readers') if one in sys.modules]))"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
        assert json.loads(done.stdout) == [] and done.stderr == ""

    def test_a_jetson_without_its_driver_is_still_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(default_engines, "cuda_driver", lambda: None)
        monkeypatch.setattr(default_engines, "is_jetson", lambda: True)
        for machine, found in (("aarch64", True), ("x86_64", False)):
            monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
            assert has_gpu() == found


class TestWhatAFileSays:
    @pytest.mark.parametrize("head", ["engines: onnxruntime\n", "board: host\n"])
    def test_engines_and_the_processor_alone(self, tmp_path: Path, head: str) -> None:
        file = written(tmp_path, head + PIPELINE)
        assert with_default_engines(file, machine=ORIN, trt=bench().backend) == (file, "")

    @pytest.mark.parametrize(
        "section", [{"backend": "ort"}, {"placement": "cpu0"}, {"placement": "{replicate: [cpu0, cpu1]}"}]
    )
    def test_a_backend_and_cores_of_the_processor(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: dict[str, str]
    ) -> None:
        file = written(tmp_path, **section)
        assert with_default_engines(file, machine=ORIN, trt=bench().backend) == (file, "")
        beside = replace(file, config=file.config.model_copy(update={"engines": ("tensorrt",)}))  # another model's
        on = bench()
        assert compiled(beside, on, monkeypatch)["backend"] == "ort" and on.requests == []

    @pytest.mark.parametrize(("precision", "kind"), [("fp32", "fp32"), ("fp16", "fp16")])
    def test_a_precision_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, kind: str
    ) -> None:
        on = bench()
        file, line = with_default_engines(written(tmp_path, precision=precision), machine=ORIN, trt=on.backend)
        assert "FP16" not in line
        compiled(file, on, monkeypatch)
        assert on.requests[0].precision == kind

    @pytest.mark.parametrize(("release", "by_flag"), [("8.6", True), ("10.3", True), ("11.4", False)])
    def test_several_sizes_stay_open_where_fp16_is_a_flag(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, by_flag: bool
    ) -> None:
        asked: list[str] = []
        file = written(tmp_path, PIPELINE.replace("{resize: stretch}", "{resize: stretch, shape: {N: [1, 1, 4]}}"))
        file, _ = with_default_engines(file, machine=ORIN, trt=bench(release).backend)
        monkeypatch.setattr("edgert.assemble.engines.detect", lambda: ORIN)

        def of(_: str, config: Any, form: str) -> Model:
            asked.append(config.precision)
            return load(config.onnx)

        monkeypatch.setattr("edgert.assemble.engines.build_engine", lambda *_, **given: given["precision"])
        engines = ChainEngines(file, of, False, None, bench(release).backend)
        assert engines._on_tensorrt("parts", file.config.models["parts"], 1, 1) == "fp16"  # type: ignore[comparison-overlap]
        assert asked == ["auto" if by_flag else "fp16"]

    @pytest.mark.parametrize(("engines", "section"), [("tensorrt", {}), ("onnxruntime", {"backend": "tensorrt"})])
    def test_tensorrt_that_is_named_is_not_fp32_either(
        self, engines: str, section: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        on = bench()
        compiled(written(tmp_path, f"engines: {engines}\n{PIPELINE}", **section), on, monkeypatch)
        assert on.requests[0].precision == "fp16"


class TestRefusals:
    def test_a_refused_model_goes_to_the_next_and_nobody_is_warned_of_what_was_not_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        on = bench(errors=[(0, "conv", "Conv", "Plugin not found")])
        file, _ = with_default_engines(written(tmp_path), machine=ORIN, trt=on.backend)
        with caplog.at_level(logging.WARNING, "edgert.backend"):
            info = compiled(file, on, monkeypatch)
        assert info["engine"] == "onnxruntime"
        assert [one["engine"] for one in info["skipped"]] == ["tensorrt", "onnxruntime-cuda"]
        assert len(caplog.messages) == 1 and caplog.messages[0].startswith("tensorrt skipped for model parts: ")

    def test_strict_asks_for_the_best_that_is_here_not_for_what_is_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("edgert.backend.tensorrt.trt_backend.load", missing())
        file, _ = with_default_engines(written(tmp_path), machine=ORIN, trt=TrtBackend(machine=ORIN))
        assert compiled(file, bench(), monkeypatch, strict=True)["backend"] == "ort"
        on = bench(errors=[(0, "conv", "Conv", "Plugin not found")])
        file, _ = with_default_engines(written(tmp_path), machine=ORIN, trt=on.backend)
        with pytest.raises(BuildError, match="cannot parse node 'conv'") as caught:
            compiled(file, on, monkeypatch, strict=True)
        assert caught.value.fix.endswith("the next possible engine is used: onnxruntime")


class TestTurns:
    """Models that take each other's place get their frames in the same memory."""

    def assembled(self, folder: Path, monkeypatch: pytest.MonkeyPatch, further: str, **section: str) -> dict[str, Any]:
        small = f"  small:\n    onnx: models/parts/model.onnx\n    task: {{segment: argmax}}\n{further}stages:"
        text = PIPELINE.replace("stages:", small)
        on = bench()
        file, _ = with_default_engines(
            written(folder, text, degrade_to="small", **section), machine=ORIN, trt=on.backend
        )
        monkeypatch.setattr("edgert.assemble.engines.detect", lambda: ORIN)
        monkeypatch.setattr("edgert.backend.tensorrt.trt_backend.TrtBackend", lambda **_: on.backend)
        assembly = assemble(file)
        assembly.close()
        return {name: engine.info for name, engine in assembly.engines.items()}

    def test_both_are_on_the_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        infos = self.assembled(tmp_path, monkeypatch, "")
        assert [infos[name]["engine"] for name in ("parts", "small")] == ["tensorrt", "tensorrt"]

    def test_one_that_is_refused_takes_the_other_along(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = ChainEngines._on_tensorrt

        def refuse(self: ChainEngines, name: str, *given: Any) -> Any:
            if name == "small":
                raise BuildError("no Frobnicate")
            return made(self, name, *given)

        monkeypatch.setattr(ChainEngines, "_on_tensorrt", refuse)
        infos = self.assembled(tmp_path, monkeypatch, "")
        assert [infos[name]["engine"] for name in ("parts", "small")] == ["onnxruntime", "onnxruntime"]
        first = infos["parts"]["skipped"][0]
        assert (first["engine"], first["model"], first["why"]) == ("tensorrt", "parts and small", "no Frobnicate")

    @pytest.mark.parametrize("further", ["    backend: ort\n", "    placement: cpu0\n"])
    def test_one_that_stays_on_the_processor_keeps_the_other_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, further: str
    ) -> None:
        infos = self.assembled(tmp_path, monkeypatch, further)
        assert infos["parts"]["engine"] == "onnxruntime" and "engine" not in infos["small"]
        assert infos["parts"]["skipped"][0]["why"] == "it takes turns with small, which stays on the processor"


def test_in_python_the_line_is_logged_and_the_summary_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TrtBackend, "why_not", lambda self: "TensorRT is not installed (sudo apt install …)")
    with caplog.at_level(logging.INFO, "edgert.pipeline"), Pipeline(written(tmp_path)) as pipeline:
        engine = pipeline.run().engine["parts"]
    (line,) = [one for one in caplog.messages if one.startswith("engines: ")]
    assert line.startswith("engines: ONNX Runtime on the CPU; not tensorrt: TensorRT is not installed")
    assert engine["engine"] == "onnxruntime"
    assert [one["engine"] for one in engine["skipped"]] == ["tensorrt", "onnxruntime-cuda"]


@pytest.mark.parametrize("quiet", [False, True])
def test_run_says_the_line_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    monkeypatch.setattr(TrtBackend, "why_not", lambda self: "TensorRT is not installed (sudo apt install …)")
    monkeypatch.setattr("edgert.cli.run_view.run_with_progress", lambda pipeline, *_, **__: pipeline.run())
    path = str(written(tmp_path).document.path)
    done = CliRunner().invoke(app, ["run", path, "--quiet"] if quiet else ["run", path], env={"COLUMNS": "300"})
    first = "engines: ONNX Runtime on the CPU; not tensorrt: TensorRT is not installed (sudo apt install …); "
    assert done.exit_code == 0 and done.output.startswith(first) != quiet
    (line,) = [one for one in done.output.splitlines() if "tensorrt skipped" in one]
    assert line.startswith("engines: is left out, so the best here; tensorrt skipped: TensorRT is not installed")


def test_a_bundle_has_a_chain_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.cli.run_view.run_with_progress", lambda pipeline, *_, **__: pipeline.run())
    monkeypatch.setattr(default_engines, "why_not", pytest.fail)
    path = tmp_path / "dock.edgert"
    build(written(tmp_path), path)
    with unpacked(path) as found:
        assert with_default_engines(found.file) == (found.file, "")
    done = CliRunner().invoke(app, ["run", str(path)], env={"COLUMNS": "300"})
    assert done.exit_code == 0 and "bundle for host: runs with onnxruntime" in done.output
    assert "engines:" not in done.output
