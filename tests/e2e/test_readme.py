"""What the README tells people to type works as typed, in one shell; generated docs say what the code says."""

import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.helpers.command import ROOT, environment

README = (ROOT / "README.md").read_text(encoding="utf-8")
NOT_CLONED = shutil.ignore_patterns(".*", "out", "dist", "build", "tests")
FEW = {"limit: 300": "limit: 60", "limit: 64": "limit: 16"}
"""Frames and images, of which a test needs fewer than who looks at the video."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the tree, without what git does not have, with the file that the README says to save; in few frames."""
    folder = tmp_path / "edgert"
    shutil.copytree(ROOT, folder, ignore=NOT_CLONED)
    (name,), (yaml,) = re.findall(r"Save this as `(\S+)`", README), blocks("yaml")
    for file, text in {name: yaml, "pipelines/hello.yaml": (folder / "pipelines/hello.yaml").read_text()}.items():
        for many, few in FEW.items():
            text = text.replace(many, few)
        (folder / file).write_text(text)
    return folder


def install(clone: Path) -> None:
    """What ``scripts/setup plan`` makes there, by way of the packages that run this test instead of downloads."""
    folder = clone / ".venv"
    venv.create(folder)
    packages = next((folder / "lib").glob("python*/site-packages"))
    ours = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (packages / "here.pth").write_text(f"{ours}import sys; sys.path.insert(0, {str(clone)!r})\n")
    command = folder / "bin" / "edgert"
    command.write_text(f"#!{folder}/bin/python\nfrom edgert.cli import main\nmain()\n")
    command.chmod(0o755)
    (folder / ".installed-plan").touch()


def typed(clone: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Types every command, then the Python, into one shell that ends at the first error."""
    (python,) = blocks("python")
    script = "".join(blocks("sh")) + f"python - <<'END'\n{python}\nprint(edgert.__file__)\nEND\n"
    env = {key: value for key, value in environment().items() if key not in ("PYTHONPATH", "EDGERT_VENV")}
    elsewhere = [path for path in env["PATH"].split(os.pathsep) if Path(path) != Path(sys.executable).parent]
    env |= {"PATH": os.pathsep.join(elsewhere), "PYTHON": sys.executable}
    run = ["bash", "-e", "-x", "-c", script]
    return subprocess.run(run, cwd=clone, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


def assert_it_worked(done: subprocess.CompletedProcess[str], clone: Path) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("hello.mp4", "hello.jsonl", "belt.mp4"):
        assert (clone / "out" / name).stat().st_size > 1000
    assert (clone / "out" / "belt.jsonl").read_text().count("\n") == 60
    assert "parts is wired right" in done.stdout
    assert "Jetson Orin NX 16GB" in done.stdout and "frames a second" in done.stdout
    assert done.stdout.rstrip().endswith(f"{clone}/edgert/__init__.py")


def test_the_demo_says_what_to_do_next() -> None:
    last = (ROOT / "scripts" / "demo").read_text().split("<<END")[1]
    assert "out/hello.mp4" in last and "source $venv/bin/activate" in last
    (heading,) = re.findall(r'README.md, "(.*)"', last)
    assert f"\n## {heading}\n" in README
    assert re.findall(r"edgert (run \S+|doctor)", last) == ["doctor", "run usb-camera"]


def test_everything_runs_as_typed(clone: Path) -> None:
    install(clone)
    assert_it_worked(typed(clone, timeout_s=240), clone)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_everything_runs_as_typed_with_an_environment_made_from_nothing(clone: Path) -> None:
    assert_it_worked(typed(clone, timeout_s=800), clone)


def test_every_target_of_make_exists() -> None:
    named = re.findall(r"\bmake (\w+)", "\n".join([*blocks("sh"), *re.findall(r"`(make \w+)", README)]))
    assert {"demo", "test"} <= set(named)
    for target in named:
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_generated_docs_are_up_to_date() -> None:
    run = [sys.executable, "scripts/write_docs.py", "--check"]
    done = subprocess.run(run, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
