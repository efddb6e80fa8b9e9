"""Engines that take turns in one arena: the same numbers from less memory, measured in processes of their own."""

import json
import subprocess
import sys

from tests.helpers.command import ROOT

PROGRAM = """
import json, sys
import numpy as np
from edgert.config.model_section import TuningConfig
from edgert.backend.ort.runtime import open_session, session_settings
from edgert.meters import peak_rss_bytes
from edgert.graph import to_bytes
from tests.helpers.small_pipeline import network

before, means = peak_rss_bytes(), []
sides = (1024, 896)
models = [network((1, 3, side, side)) for side in sides]
tuning = TuningConfig(optimization="none", shared_arena=sys.argv[1] == "shared")
sessions = [open_session(to_bytes(model), session_settings(1, tuning), model) for model in models]
images = [np.random.default_rng(side).random((1, 3, side, side), dtype="f4") for side in sides]
for _ in range(2):
    means = [session.run(None, {"x": image})[0].ravel().tolist() for session, image in zip(sessions, images)]
print(json.dumps([means, peak_rss_bytes() - before]))
"""


def run(how: str) -> tuple[list[list[float]], int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    means, taken_bytes = json.loads(done.stdout)
    return means, taken_bytes


def test_one_arena_gives_the_same_numbers_from_less_memory() -> None:
    (apart, apart_bytes), (shared, shared_bytes) = run("apart"), run("shared")
    assert shared == apart
    smaller_bytes = 2 * 4 * 896 * 896 * 4  # its convolution and what comes of it, alive at once
    assert apart_bytes - shared_bytes > 0.5 * smaller_bytes
