"""A wheel built from the tree, installed elsewhere, is whole."""

import email
import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.helpers.command import ROOT, environment
from tools.film import read


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(run, check=True)
    return next(folder.glob("edgert-*.whl"))


def test_it_is_pure_python_and_carries_its_data(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")  # nothing to compile
    names = zipfile.ZipFile(wheel).namelist()
    role = "edgert/data/configs/fleet/ansible/roles/edgert/tasks/main.yaml"
    shipped = ("edgert/data/pipelines/hello.yaml", "edgert/data/pipelines/assets/parts.onnx", "dla/__init__.py", role)
    for path in shipped:
        assert path in names
    assert any(name.startswith("edgert/data/configs/boards/") for name in names)
    assert "edgert/py.typed" in names
    folder = "edgert/report/templates"
    assert {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir()} <= set(names)


def test_links_of_the_package_page_are_absolute_and_who_made_it_is_told(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
    page = metadata.get_payload()
    links = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", page)
    assert len(links) > 20 and all(link.startswith(("https://", "#")) for _, link in links)
    assert [link.rpartition("/")[2] for image, link in links if image] == ["hello.jpg", "first-minutes.svg"]
    root = "https://github.com/edgert/edgert/blob/main/"
    ours = [link.removeprefix(root).partition("#")[0] for _, link in links if link.startswith(root)]
    assert all((ROOT / path).exists() for path in ours) and "docs/index.md" in ours
    assert metadata["Author"] == "edgert developers"
    urls = dict(value.split(", ") for value in metadata.get_all("Project-URL"))
    assert {"Documentation", "Source", "Issues"} <= set(urls)


def test_it_runs_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    env = {**os.environ, "PYTHONPATH": str(site)}
    few = ("--set=models.parts.precision=fp32", "--set=stages.belt.limit=5")
    run = [sys.executable, "-m", "edgert", "run", "hello", *few, "--quiet"]
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "hello.mp4").exists()
    where = "import dla, edgert.board.record as b, edgert; print(edgert.__file__, dla.__file__)"
    metadata = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert metadata.stdout.count(str(site)) == 2, metadata.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_readme_leads_from_the_wheel_to_the_live_page_in_five_minutes(wheel: Path, tmp_path: Path) -> None:
    """As it is typed by somebody who types 40 words a minute; the packages are downloaded."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8080)) == 0:
            pytest.skip("something else answers on port 8080")
    run = [sys.executable, "tools/first_minutes.py", str(wheel), "--cast", str(tmp_path / "a.cast")]
    done = subprocess.run(run, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+ s from the first key to [1-9]\d* objects", done.stdout)
    head, outputs = read(tmp_path / "a.cast")
    assert head["version"] == 2 and outputs[-1].at_s < 400
