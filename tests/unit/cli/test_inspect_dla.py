"""``edgert inspect --dla`` as a user types it, and its table."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.command import ROOT, in_process
from tests.helpers.models import node, save


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Conv with a ReLU, a pooling of 9×9, and names that want escaping; the batch is open."""
    weight = np.full((8, 3, 3, 3), 0.1, np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="stem [bold]", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"], name="act"),
        node("MaxPool", ["b"], ["y"], name="<pool>", kernel_shape=[9, 9], pads=[4, 4, 4, 4]),
    ]
    path = tmp_path_factory.mktemp("dla") / "net.onnx"
    return save(path, nodes, {"x": ("n", 3, 32, 32)}, {"y": ("n", 8, 32, 32)}, {"w": weight})


def test_table_summary_page_and_json(model: Path, tmp_path: Path) -> None:
    arguments = ("--dla", "--board", "orin-nx-16gb", "--shape", "x=1x3x32x32")
    done = in_process(
        "inspect", str(model), *arguments, "--all", "--report", "dla.html", "--json", "dla.json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "runs 2 of 3 nodes" in done.stdout and "pool.window" in done.stdout
    assert "stem [bold]" in done.stdout and "<pool>" in done.stdout
    assert done.stdout.index("loadables") < done.stdout.index("verdict")  # the summary first
    report = json.loads((tmp_path / "dla.json").read_text())["dla"]
    assert (report["board"], report["cores"], report["target"]["tensorrt"]) == ("orin-nx-16gb", 2, "10.3.0")
    assert [one["answer"] for one in report["nodes"]] == ["yes", "yes", "no"]
    assert report["summary"]["macs"] == 8 * 27 * 32 * 32 and report["summary"]["macs_yes"] == 1
    page = (tmp_path / "dla.html").read_text()
    assert "&lt;pool&gt;" in page and "<pool>" not in page and "Jetson Orin NX 16GB" in page


def test_release_and_precision(model: Path, tmp_path: Path) -> None:
    arguments = ("--dla", "--board", "agx-orin-64gb", "--shape", "x=1x3x32x32", "--json", "-")
    typed = in_process("inspect", str(model), *arguments, "--trt", "11.4.1", "--precision", "fp16", cwd=tmp_path)
    report = json.loads(typed.stdout)["dla"]
    assert (report["release"]["answer"], report["target"]["precision"]) == ("verify", "fp16")
    none = json.loads(in_process("inspect", str(model), *arguments, "--trt", "11.2", cwd=tmp_path).stdout)["dla"]
    assert {one["rule"] for one in none["nodes"]} == {"release"} and none["segments"] == []


def test_xavier_has_its_own_release(model: Path, tmp_path: Path) -> None:
    done = in_process("inspect", str(model), "--dla", "--board", "xavier-nx-8gb", "--json", "-", cwd=tmp_path)
    report = json.loads(done.stdout)["dla"]
    assert report["target"] == {"generation": 1, "tensorrt": "8.5.2", "precision": "int8"}
    assert report["nodes"][0]["rule"] == "general.static" and "--shape" in report["nodes"][0]["fix"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--dla", "--board", "orin-nano-8gb"), 1, ("Orin Nano", "has no DLA", "orin-nx-16gb")),
        (("--dla", "--board", "orin-nx-16"), 1, ("orin-nx-16", "did you mean")),
        (("--dla", "--board", "orin-nx-16gb", "--trt", "ten"), 1, ("no such DLA target", "'ten'", "--trt 10.3")),
        (("--dla", "--board", "orin-nx-16gb", "--precision", "fp32"), 1, ("fp16 or int8", "'fp32'")),
        (("--board", "orin-nx-16gb"), 2, ("--board", "together with --dla")),
        (("--report", "x.html"), 2, ("--report", "together with --dla")),
        (("--explain",), 2, ("--explain", "together with --dla")),
        (("--all",), 2, ("--all", "together with --dla")),
        (("--skip-rewrite", "pad"), 2, ("--skip-rewrite", "together with --dla")),
        (
            ("--dla", "--board", "orin-nx-16gb", "--skip-rewrite", "maxpool"),
            1,
            ("no rewrite", "did you mean 'max-pool'"),
        ),
    ],
)
def test_bad_input(model: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, words: tuple[str, ...]) -> None:
    done = in_process("inspect", str(model), *arguments, cwd=tmp_path)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert all(word in " ".join(done.stderr.split()) for word in words), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_board_named_on_a_machine_that_is_none(model: Path, tmp_path: Path) -> None:
    if Path("/proc/device-tree/compatible").exists():
        pytest.skip("this machine has a device tree: it may be a Jetson")
    done = in_process("inspect", str(model), "--dla", cwd=tmp_path)
    assert (
        done.returncode == 1
        and "cannot tell which board's DLA to check" in done.stderr
        and "--board NAME" in done.stderr
    )
    assert done.stdout == ""


def test_explain_rewrites_proves_and_writes(model: Path, tmp_path: Path) -> None:
    arguments = ("--dla", "--board", "orin-nx-16gb", "--shape", "x=1x3x32x32", "--explain")
    done = in_process("inspect", str(model), *arguments, "--rewritten", "new.onnx", "--json", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "max-pool, 1 ×" in done.stdout and "both were run" in done.stdout
    report = json.loads((tmp_path / "r.json").read_text())["dla"]["rewritten"]
    assert {change["rule"] for change in report["changes"]} >= {"max-pool"}
    assert report["proof"]["error"] <= 1e-5 * max(report["proof"]["largest"], 1)
    assert report["after"]["summary"]["no"] == 0
    fewer = in_process("inspect", str(model), *arguments, "--skip-rewrite", "max-*", cwd=tmp_path)
    assert fewer.returncode == 0 and "max-pool" not in fewer.stdout.split("Rewritten for the DLA")[1]
    again = in_process("inspect", "new.onnx", "--dla", "--board", "orin-nx-16gb", "--explain", cwd=tmp_path)
    assert again.returncode == 0 and "no rewrite applies" in again.stdout


MODEL = str(ROOT / "pipelines" / "assets" / "parts.onnx")
BOARD = ("--board", "orin-nx-16gb")


def rows(tmp_path: Path, *more: str) -> list[str]:
    done = in_process("inspect", MODEL, "--dla", *BOARD, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return lines[next(number for number, line in enumerate(lines) if line.startswith("node ")) :]


def test_only_what_is_refused_or_to_verify(tmp_path: Path) -> None:
    found = rows(tmp_path)
    assert not any(" yes " in line for line in found)
    assert sum(" no " in line for line in found) == 4 and sum(" verify " in line for line in found) == 1
    assert "78 more nodes run there or fold away: --all" in found[-1]


def test_all_of_it(tmp_path: Path) -> None:
    found = rows(tmp_path, "--all")
    assert sum(" yes " in line for line in found) == 78 and "--all" not in found[-1]
