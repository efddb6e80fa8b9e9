"""Where edgert came from, a checkout or a wheel: the files that come with it, and hints to install something."""

import re
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgert import installation, installation as module
from edgert.backend.ort import cuda, runtime
from edgert.errors import ArtifactError, DeviceError
from edgert.installation import checkout, data_folder, pipeline_named, shipped
from edgert.placement.integer import import_scipy
from tests.helpers.command import ROOT

REQUIRES = [
    "numpy>=1.26",
    'scipy>=1.13; extra == "plan"',
    "PyNvVideoCodec>=2; (platform_machine == 'x86_64') and extra == 'nvdec'",
    "tensorflow>=2.16; extra == 'tensorflow'",
    "tf2onnx>=1.17; extra == 'tensorflow'",
]


def test_in_a_clone_it_is_the_clones_extra() -> None:
    assert installation.command("plan") == f"pip install -e '{ROOT}[plan]'"


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("plan", "pip install 'scipy>=1.13'"),
        ("nvdec", "pip install 'PyNvVideoCodec>=2'"),
        ("tensorflow", "pip install 'tensorflow>=2.16' 'tf2onnx>=1.17'"),
    ],
)
def test_installed_from_a_wheel_it_is_what_the_extra_stands_for(
    extra: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "checkout", lambda: None)
    monkeypatch.setattr(metadata, "requires", lambda _: REQUIRES)
    assert installation.command(extra) == command


def test_the_solver_says_how_to_get_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("edgert.placement.integer.importlib.import_module", missing)
    with pytest.raises(Exception, match="placement needs SciPy") as caught:
        import_scipy("sparse")
    assert installation.command("plan") in str(caught.value)


def test_the_lines_of_the_gpu_page_work_as_pasted() -> None:
    """Nothing asks back, nothing is removed before what replaces it is there, and CUDA's libraries come along."""
    page = (ROOT / "docs" / "gpu.md").read_text()
    (block,) = [one for one in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "onnxruntime-gpu" in one]
    typed = re.sub(r"\s+#.*", "", block).replace("&&\n", "&&")
    (line,) = [one for one in typed.splitlines() if "onnxruntime" in one]
    assert [" ".join(one.split()) for one in line.split("&&")] == [
        'pip install "onnxruntime-gpu[cuda,cudnn]"',
        "pip uninstall -y onnxruntime",
        "pip install --force-reinstall --no-deps onnxruntime-gpu",  # they share a folder
    ]
    assert "pip install -e '.[rtx]'" in typed and "nvidia-cuda-nvrtc`" in page and "Not on a Jetson" in page
    assert not re.search(r"pip uninstall (?!-y)", "".join(path.read_text() for path in (ROOT / "docs").glob("*.md")))


def test_a_jetson_is_not_sent_for_a_wheel_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """JetPack 6 has Python 3.10 on aarch64: https://pypi.org/project/onnxruntime-gpu/#files."""
    monkeypatch.setattr(runtime, "ort", lambda: SimpleNamespace(get_available_providers=list, __version__="1"))
    for on_jetson in (True, False):
        monkeypatch.setattr(cuda, "is_jetson", lambda here=on_jetson: here)
        with pytest.raises(DeviceError, match="no CUDA provider") as caught:
            cuda.check_provider()
        assert caught.value.fix.startswith("use engines: [tensorrt]" if on_jetson else "pip install onnxruntime-gpu")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DeviceError, match="ONNX Runtime is not installed") as caught:
        runtime.ort()
    assert caught.value.fix == "pip install onnxruntime"


def test_a_checkout_uses_its_own_folders() -> None:
    root = checkout()
    assert root is not None and data_folder("configs") == root / "configs"
    assert shipped("configs/boards/orin-nx-16gb.yaml").is_file()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site-packages/edgert"
    pipelines = package / "data/pipelines"
    pipelines.mkdir(parents=True)
    (pipelines / "hello.yaml").write_text("schema: 1\n")
    monkeypatch.setattr(module, "_PACKAGE", package)
    return package


def test_a_wheel_carries_them_inside_the_package(wheel: Path) -> None:
    assert checkout() is None
    assert shipped("pipelines/hello.yaml") == wheel / "data/pipelines/hello.yaml"


def test_a_damaged_installation_is_told(wheel: Path) -> None:
    with pytest.raises(ArtifactError, match=r"configs/boards/none\.yaml is missing from this edgert"):
        shipped("configs/boards/none.yaml")


def test_pipelines_by_name(wheel: Path) -> None:
    expected = wheel / "data/pipelines/hello.yaml"
    assert pipeline_named("hello") == pipeline_named("hello.yaml") == expected
    assert pipeline_named("none") is None
    assert pipeline_named("../pipelines/hello") is None
    assert pipeline_named("") is None


def test_a_name_that_is_too_long_for_a_file_is_no_pipeline() -> None:
    assert module.pipeline_named("x" * 300) is None and module.pipeline_path("x" * 300) == Path("x" * 300)
