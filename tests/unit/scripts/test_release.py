"""A release: the commit that wheels name, and the workflow that makes one from a tag."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from edgert import __version__, installation
from edgert.cli import app

ROOT = Path(__file__).resolve().parents[3]
WORKFLOW = ROOT / ".github/workflows/release.yml"


def test_an_installed_edgert_names_the_commit_of_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "checkout", lambda: None)
    monkeypatch.setattr(installation, "data_folder", lambda name: tmp_path / name)
    assert CliRunner().invoke(app, ["--version"]).output == f"edgert {__version__}\n"
    (tmp_path / "commit.txt").write_text("0123456789ab\n")
    assert CliRunner().invoke(app, ["--version"]).output == f"edgert {__version__} (0123456789ab)\n"


def test_a_checkout_asks_git_and_does_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "checkout", lambda: tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert installation.commit() == ""
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert re.fullmatch(r"[0-9a-f]{12}", installation.commit())


def test_the_workflow_needs_one_key_and_runs_what_is_there() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    steps = yaml.safe_load(text)["jobs"]["release"]["steps"]
    assert set(re.findall(r"secrets\.(\w+)", text)) == {"RELEASE_KEY"}
    commands = "\n".join(step.get("run", "") for step in steps)
    assert "make test" in commands and (ROOT / "tools/release").stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", ROOT / "tools/release"], check=True)


def test_the_workflow_may_do_no_more_than_draft_and_runs_pinned_actions() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {} and workflow["jobs"]["release"]["permissions"] == {"contents": "write"}
    actions = re.findall(r"uses: (\S+)", WORKFLOW.read_text(encoding="utf-8"))
    assert actions and all(re.search(r"@[0-9a-f]{40}$", action) for action in actions)
    if (zizmor := shutil.which("zizmor", path=str(Path(sys.executable).parent))) is None:
        pytest.skip("zizmor is not installed: extra test")
    done = subprocess.run([zizmor, "--offline", "--persona", "pedantic", WORKFLOW], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
