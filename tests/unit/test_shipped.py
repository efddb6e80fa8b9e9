"""Files that come with edgert, in a checkout and in an installed wheel."""

from pathlib import Path

import pytest

from edgert import installation as module
from edgert.errors import ArtifactError
from edgert.installation import checkout, data_folder, pipeline_named, shipped


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
