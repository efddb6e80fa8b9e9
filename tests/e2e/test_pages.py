"""The Python of pages runs beside README's pipeline; a block that fails names a file or package that is not here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import ROOT, environment
from tests.helpers.documents import Piece, blocks

MISSING = r"no such file|no file|there is no|No module named 'torch'|CPU tensor|\$\{\w+|NameError|starter"
NEEDED = [one for one in blocks("python") if one.place.startswith(("README", "docs/python", "docs/gpu", "docs/tasks"))]


@pytest.mark.parametrize("piece", NEEDED, ids=str)
def test_python_of_a_page_runs(piece: Piece, tmp_path: Path) -> None:
    for folder, copy in (("pipelines", "pipelines"), ("pipelines/assets", ".")):
        shutil.copytree(ROOT / folder, tmp_path / copy, dirs_exist_ok=True)
    (pipeline,) = [one.text for one in blocks("yaml") if one.place.startswith("README")]
    (tmp_path / "belt.yaml").write_text(pipeline.replace("limit: 300", "limit: 10"))
    run = [sys.executable, "-c", piece.text]
    done = subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or re.search(MISSING, done.stderr), done.stderr
