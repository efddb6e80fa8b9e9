"""What is imported before a verb does its work: little, so that help and mistakes are told at once."""

import subprocess
import sys

import pytest

from tests.helpers.command import ROOT, environment

HEAVY = {"cv2", "numpy", "onnx", "onnxruntime", "av", "scipy", "rich", "jinja2"}


MAKING = {f"edgert.{name}" for name in ("planner", "assemble", "quantization.quantizer", "quantization.int8_model")}


def loaded(code: str, of: set[str] = HEAVY) -> set[str]:
    """The heavy packages, or others ``of`` interest, that some code imports."""
    program = f"import sys\ntry:\n    {code}\nexcept SystemExit: pass\nprint('\\n', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    return of & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("rnu",), ("--version",)])
def test_help_and_usage_load_nothing_heavy(words: tuple[str, ...]) -> None:
    assert loaded(f"sys.argv = {['edgert', *words]}; from edgert.cli import main; main()") == set()


def test_a_pipeline_file_is_read_without_images_and_arrays() -> None:
    assert (
        loaded(f"from edgert.config import load_pipeline; load_pipeline({str(ROOT / 'pipelines/hello.yaml')!r})")
        == set()
    )


def test_a_build_that_finds_all_its_steps_done_loads_nothing_that_makes_them() -> None:
    assert loaded("import edgert.compiler.build_pipeline", MAKING) == set()
