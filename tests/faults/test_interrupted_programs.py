"""Ctrl-C in a program that uses the Python API: it ends in order and its files are whole, also without ``with``."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.helpers.command import ROOT, environment
from tests.helpers.gpu import gpu_or_skip
from tests.helpers.waiting import wait_until

MODEL = f"""
models:
  parts:
    onnx: {ROOT}/pipelines/assets/parts.onnx
    task: {{detect: yolox, labels: {ROOT}/pipelines/assets/parts.txt}}
    input: {{resize: letterbox, color: rgb, std: 255}}
"""
FILMED = (
    MODEL
    + """
stages:
  camera: {source: "synthetic:noise", size: 320x240, fps: 30, realtime: true}
  find: {infer: parts, from: camera}
  lines: {sink: jsonl, from: find, path: lines.jsonl}
"""
)
BROUGHT = (
    MODEL
    + """
stages:
  camera: {source: api}
  find: {infer: parts, from: camera}
  lines: {sink: jsonl, from: find, path: lines.jsonl}
"""
)
IMAGES = "import itertools\nimport numpy as np\nimage = np.zeros((240, 320, 3), np.uint8)\n"
STACKS = "import faulthandler, signal\nfaulthandler.register(signal.SIGUSR1)\n"
WAYS = {
    "run": (FILMED, "edgert.Pipeline('p.yaml').run()"),
    "run in with": (FILMED, "with edgert.Pipeline('p.yaml') as pipeline: pipeline.run()"),
    "results": (FILMED, "for result in edgert.Pipeline('p.yaml').results('find'): pass"),
    "latest": (FILMED, "pipeline = edgert.Pipeline('p.yaml')\nwhile True: pipeline.latest('find')"),
    "call": (BROUGHT, f"{IMAGES}pipeline = edgert.Pipeline('p.yaml')\nwhile True: pipeline(image)"),
    "map": (BROUGHT, f"{IMAGES}for _ in edgert.Pipeline('p.yaml').map(itertools.repeat(image)): pass"),
    "submit": (BROUGHT, f"{IMAGES}pipeline = edgert.Pipeline('p.yaml')\nwhile True: pipeline.submit(image)"),
}


def interrupted(folder: Path, way: str, engines: str = "") -> subprocess.CompletedProcess[str]:
    """Start a program, interrupt it once it has written ten lines, and return how it ended.

    One that has not ended after 20 s says where each of its threads is.
    """
    file, program = WAYS[way]
    (folder / "p.yaml").write_text(engines + file)
    (folder / "program.py").write_text(f"{STACKS}import edgert\n{program}\n")
    lines = folder / "lines.jsonl"
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=folder,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a job in the background inherits "ignored"
    )
    try:
        wait_until(lambda: process.poll() is not None or (lines.exists() and lines.read_bytes().count(b"\n") > 10), 120)
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            process.kill()
            pytest.fail(f"20 s after the interrupt it runs on:\n{process.communicate()[1]}")
    finally:
        process.kill()
    return subprocess.CompletedProcess((), process.returncode, "", errors)


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_by_the_interrupt_and_every_line_is_whole(tmp_path: Path, way: str) -> None:
    done = interrupted(tmp_path, way)
    assert done.returncode == -signal.SIGINT and done.stderr.rstrip().endswith("KeyboardInterrupt"), done.stderr
    assert "Exception ignored" not in done.stderr
    text = (tmp_path / "lines.jsonl").read_text()
    assert text.endswith("\n") and all(json.loads(line) for line in text.splitlines())


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_on_a_gpu_no_thread_ends_within_a_context(tmp_path: Path, way: str) -> None:
    gpu_or_skip()
    done = interrupted(tmp_path, way, "engines: [tensorrt, onnxruntime-cuda]\n")
    assert done.returncode == -signal.SIGINT, done.stderr  # not by abort()
    text = (tmp_path / "lines.jsonl").read_text()
    assert text.endswith("\n") and all(json.loads(line) for line in text.splitlines())
