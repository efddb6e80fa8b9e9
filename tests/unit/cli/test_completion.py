"""Completion of the shell: the script that ``--show-completion`` prints, run by bash itself."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import environment

DRIVER = """
edgert() {{ {python} -c 'import sys; sys.argv[0] = "edgert"; from edgert.cli import main; main()' "$@"; }}
export -f edgert
source <(edgert --show-completion bash | sed 's/\\$1 )/bash -c edgert )/')
COMP_WORDS=({words}); COMP_CWORD={at}; _edgert_completion edgert; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("edgert", "ca"), ["calibrate"]),
        (("edgert", "plan", "--obj"), ["--objective"]),
        (("edgert", "plan", "hel"), ["hello"]),
        (("edgert", "plan", "hello", "--board", "agx-orin-6"), ["agx-orin-64gb"]),
        (("edgert", "run", "./"), []),  # bash completes names of files
    ],
)
def test_bash_completes(tmp_path: Path, words: tuple[str, ...], found: list[str]) -> None:
    script = DRIVER.format(python=sys.executable, words=" ".join(words), at=len(words) - 1)
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=60, check=True
    )
    assert done.stdout.split() == found, (done.stdout, done.stderr)
