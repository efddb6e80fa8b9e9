"""Who runs a bundle on a machine, and what is said about those who do not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from edgert.assemble import Environment, gpu_models
from edgert.backend import Engine, EngineOptions
from edgert.backend.chain import Chain, Replicated
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.board import HOST
from edgert.board.record import board
from edgert.bundle.bundle import open_bundle
from edgert.compiler.board_engines import BuildEvents, BundleEngines
from edgert.compiler.finish import check_board, finish
from edgert.compiler.unpack import unpacked
from edgert.errors import ArtifactError, BuildError, ConfigError, DeviceError, PlacementError
from edgert.pipeline import pipeline_in
from edgert.reporter import Progress
from tests.helpers.bundles import bundle, manifest_of
from tests.helpers.errors import raises
from tests.helpers.gpu_inference import no_kernels
from tests.helpers.trt_bench import HERE, ORIN, Bench
from tests.helpers.trt_bundle import SPLIT, bench, engine, model, trt_bundle

ON_THE_GPU = json.dumps({"Layers": [
    {"Name": "conv + relu", "LayerType": "CaskConvolution", "Metadata": "[ONNX Layer: conv]\x1e[ONNX Layer: relu]"},
]})  # fmt: skip


pytestmark = pytest.mark.usefixtures("own_cache")


def no_gpu() -> TrtBackend:
    device = Mock(side_effect=DeviceError("there is no NVIDIA GPU here", why="there is no CUDA driver"))
    return TrtBackend(machine=HERE, library=Bench().backend.library, device=device)


def test_a_jetsons_bundle_falls_back_here_and_says_why(tmp_path: Path) -> None:
    with unpacked(bundle(tmp_path / "dock.edgert"), machine=HERE, trt=no_gpu()) as found:
        assert found.engine == "onnxruntime"
        assert [one.engine for one in found.skipped] == ["tensorrt-dla", "tensorrt", "onnxruntime-cuda"]
        assert [str(one) for one in found.skipped[:2]] == [
            "tensorrt-dla skipped: host has no DLA",
            "tensorrt skipped: there is no NVIDIA GPU here: there is no CUDA driver",
        ]


def test_an_error_about_a_member_names_the_bundle_and_not_the_temporary_folder(tmp_path: Path) -> None:
    path = bundle(tmp_path / "dock.edgert")
    with pytest.raises(ConfigError) as caught, unpacked(path, machine=HERE, trt=no_gpu()) as found:
        raise ConfigError("a mistake", where=found.file.document.where(()), others=[ConfigError("another")])
    assert caught.value.where.startswith(f"{path}/pipeline.yaml") and caught.value.others[0].what == "another"


def test_strict_refuses_what_it_would_skip(tmp_path: Path) -> None:
    path = bundle(tmp_path / "dock.edgert")
    with (
        raises(BuildError, "tensorrt-dla cannot run", fix=("strict", "onnxruntime")),
        unpacked(path, strict=True, machine=HERE, trt=no_gpu()),
    ):
        pytest.fail("it was opened")


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ("agx-orin-64gb", "GPU 16 SMs instead of 8 SMs"),
        ("orin-nx-8gb", "DLA 1 cores instead of 2 cores"),
        ("xavier-nx-16gb", "chip tegra194 instead of tegra234"),
    ],
)
def test_a_bundle_for_another_chip_or_module_class_is_refused(other: str, difference: str) -> None:
    with raises(ArtifactError, "for orin-nx-16gb", why=difference, fix=f"--board {other}"):
        check_board(manifest_of(), replace(ORIN, name=other, board=board(other)), "dock.edgert")


def test_a_bundle_for_this_board_or_for_any_is_taken_in_silence() -> None:
    assert check_board(manifest_of(), ORIN, "dock.edgert") == ""
    assert check_board(manifest_of(board=HOST, engines=["onnxruntime"]), ORIN, "dock.edgert") == ""


def test_a_board_that_edgert_does_not_run_on_is_a_named_error() -> None:
    """Its board file says so, and why."""
    xavier = replace(ORIN, name="xavier-nx-16gb", board=board("xavier-nx-16gb"))
    with pytest.raises(DeviceError, match="edgert does not run on a Jetson Xavier NX 16GB") as caught:
        check_board(manifest_of(board="xavier-nx-16gb", tensorrt="8.5.2"), xavier, "there/dock.edgert")
    assert "Python 3.8" in caught.value.why and "edgert export dock.edgert --format onnx" in caught.value.fix
    assert check_board(manifest_of(board=HOST, engines=["onnxruntime"]), xavier, "dock.edgert") == ""


def test_what_cannot_be_compared_is_taken_with_a_word() -> None:
    unknown = replace(ORIN, name="jetson", board=None)
    assert "EDGERT_BOARD=orin-nx-16gb" in check_board(manifest_of(), unknown, "dock.edgert")
    faster = replace(ORIN, name="orin-nx-16gb-super", board=board("orin-nx-16gb-super"))
    assert "predictions" in check_board(manifest_of(), faster, "dock.edgert")
    assert "board file" in check_board(manifest_of(board="our-carrier"), ORIN, "dock.edgert")


def test_no_engine_left_is_an_error_that_lists_them(tmp_path: Path) -> None:
    path = trt_bundle(tmp_path / "dock.edgert", engines=["tensorrt", "abacus"])
    with (
        raises(BuildError, "no engine of the chain", why=("tensorrt skipped", "no engine 'abacus'")),
        unpacked(path, machine=HERE, trt=no_gpu()),
    ):
        pytest.fail("it was opened")


def test_unpacked_files_are_there_inside_the_block_only(tmp_path: Path) -> None:
    path = bundle(tmp_path / "dock.edgert")
    with unpacked(path, ["name=renamed"], machine=HERE, trt=no_gpu()) as found:
        folder = found.file.document.path.parent
        assert found.file.config.name == "renamed"
        files = {one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()}
        assert files == {"pipeline.yaml", "models/parts/model.onnx"}
    assert not folder.exists()


def test_nothing_of_a_damaged_bundle_is_unpacked(tmp_path: Path) -> None:
    path = bundle(tmp_path / "dock.edgert")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged"), unpacked(path, machine=HERE):
        pytest.fail("it was opened")


class TestOnABoard:
    def run(self, path: Path, on: Bench, events: list[Progress]) -> dict[str, Any]:
        """Runs a bundle as ``edgert run`` does; what the summary says of its engine."""
        with unpacked(path, machine=ORIN, trt=on.backend, on_progress=events.append) as found:
            with pipeline_in(Environment(engines=found.engines), found.file) as pipeline:
                summary = pipeline.run()
            assert (found.engine, summary.frames_out) == ("tensorrt-dla", 3)
            return dict(summary.engine["parts"])

    def test_the_first_run_compiles_and_the_second_does_not(self, tmp_path: Path) -> None:
        path, events = trt_bundle(tmp_path / "dock.edgert"), list[Progress]()
        first, second = bench(), bench()
        info = self.run(path, first, events)
        assert (info["engine"], info["skipped"], info["cached"]) == ("tensorrt-dla", [], False)
        assert [(one.step, one.state) for one in events if one.state != "started"] == [
            ("compile", "note"),
            ("compile", "done"),
            ("check", "done"),
        ]
        assert self.run(path, second, events)["cached"] is True and second.requests == []
        assert first.device.live_bytes == second.device.live_bytes == 0

    def test_frames_are_dealt_to_all_engines_of_a_model(self, tmp_path: Path) -> None:
        engines = engine(dict.fromkeys(SPLIT, "gpu"), 2 / 3), engine(dict.fromkeys(SPLIT, "dla0"), 1 / 3)
        path = trt_bundle(tmp_path / "dock.edgert", *engines)
        info = self.run(path, bench(), [])
        assert [one["weight"] for one in info["parts"]] == [67, 33]

    def test_frames_are_prepared_on_the_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Kernels of the double compute nothing, but are launched: by two engines, one of them with DLA layers."""
        monkeypatch.setattr(gpu_models, "Kernels", no_kernels)
        engines = engine(dict.fromkeys(SPLIT, "gpu"), 2 / 3), engine(dict.fromkeys(SPLIT, "dla0"), 1 / 3)
        on = bench()
        self.run(trt_bundle(tmp_path / "dock.edgert", *engines), on, [])
        assert [one[0] for one in on.device.gpu.launches].count("preprocess") >= 3
        assert "capture" in on.device.events and on.device.live_bytes == 0

    def test_a_model_that_tensorrt_refuses_runs_with_onnx_runtime(self, tmp_path: Path) -> None:
        path, events = trt_bundle(tmp_path / "dock.edgert"), list[Progress]()
        info = self.run(path, bench(errors=[(0, "conv", "Conv", "Plugin not found")]), events)
        assert info["engine"] == "onnxruntime" and len(info["skipped"]) == 2
        assert [one.detail.partition(":")[0] for one in events if one.state == "skipped"] == [
            "tensorrt-dla",
            "tensorrt",
        ]

    def test_strict_refuses_nodes_that_left_their_dla(self, tmp_path: Path) -> None:
        path, on = trt_bundle(tmp_path / "dock.edgert"), bench(answer={"inspector": ON_THE_GPU})
        self.run(path, on, [])  # without it they are said, and run
        with (
            unpacked(path, strict=True, machine=ORIN, trt=on.backend) as found,
            raises(PlacementError, why="'conv' runs on gpu, not dla0", fix="--strict"),
        ):
            pipeline_in(Environment(engines=found.engines, strict=True), found.file).run()

    def test_engines_of_the_bundle_are_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path, packed = trt_bundle(tmp_path / "dock.edgert"), tmp_path / "packed.edgert"
        finish(path, packed, machine=ORIN, trt=bench().backend)
        monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "elsewhere"))
        on = bench()
        assert self.run(packed, on, [])["cached"] is True and on.requests == []
        with open_bundle(packed) as opened:
            assert len(opened.manifest.compiled) == 1


def test_engines_of_a_model_are_closed_where_a_later_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Mock()
    monkeypatch.setattr(BundleEngines, "_specs", lambda *_: [Mock(), Mock()])
    monkeypatch.setattr(
        BundleEngines, "_compile_and_check", Mock(side_effect=[(None, first), BuildError("a bad engine")])
    )
    chain = Chain(["tensorrt"], lambda engine: "", strict=True)
    engines = BundleEngines(Path(), manifest_of(), chain, bench().backend, Mock(), BuildEvents())
    with pytest.raises(BuildError, match="a bad engine"):
        engines.compile("parts", Mock(), 1, 1)
    first.close.assert_called_once_with()


def test_several_engines_are_one() -> None:
    first, second = (bench().backend.compile(model(), EngineOptions()) for _ in range(2))
    both = Replicated([(first, 2), (second, 1)])
    assert isinstance(both, Engine) and both.inputs == first.inputs and both.session().run()
    both.close()
