"""The packages edgert depends on, asked for real."""

import subprocess
import sys

from edgert.diagnosis import child
from edgert.diagnosis.probe import ask_all
from tests.unit.diagnosis.evidence import WORKING


def test_required_packages_answer_with_the_facts_that_probes_use() -> None:
    found = ask_all(("onnxruntime", "cv2", "av", "cuda"))
    for name, answer in found.items():
        assert answer.works, answer.error
        assert set(answer.facts) == set(WORKING[name].facts)
    assert "CPUExecutionProvider" in found["onnxruntime"].facts["providers"]
    assert "h264" in found["av"].facts["decoders"]


def test_a_package_that_is_not_installed_is_absent_not_broken() -> None:
    command = [sys.executable, "-S", str(child.__file__), "onnxruntime"]  # without site-packages nothing is installed
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, '{"absent": true}')


def test_importing_the_doctor_imports_no_vendor_package() -> None:
    code = (
        "import sys, edgert.diagnosis; print([n for n in ('onnxruntime', 'cv2', 'av', 'pydantic') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
