"""Frames in which something moves pass, and a heartbeat."""

import numpy as np
import pytest

from edgert.runtime.frame import PixelFormat
from edgert.stages.motion_gate import MotionGate, MotionSection
from tests.helpers.frames import frame_of, result_of

RATE_HZ = 10


def gate_of(hold: str, heartbeat: str) -> MotionGate:
    keys = {"stage": "motion", "from": "cam", "hold": hold, "heartbeat": heartbeat}
    return MotionGate(MotionSection.model_validate(keys))


def passes(gate: MotionGate, index: int, x: int | None = None, form: PixelFormat = "gray", light: int = 0) -> bool:
    """A noisy camera, and a square at ``x``."""
    random = np.random.default_rng(index)
    gray = (100 + light + random.normal(0, 3, (240, 320))).clip(0, 255).astype(np.uint8)
    if x is not None:
        gray[100:140, x : x + 30] = 220
    planes = {
        "gray": (gray,),
        "bgr": (np.repeat(gray[..., None], 3, axis=2),),
        "yuyv": (np.dstack((gray, np.full_like(gray, 128))),),
        "nv12": (gray, np.full((120, 160, 2), 128, np.uint8)),
    }
    at_ns = index * 1_000_000_000 // RATE_HZ
    return (
        gate.process(result_of(frame_of(320, 240, form, pixels=planes[form], index=index, media_ns=at_ns))) is not None
    )


@pytest.mark.parametrize("form", ["gray", "bgr", "yuyv", "nv12"])
def test_motion_passes_for_a_while_and_stillness_does_not(form: PixelFormat) -> None:
    gate = gate_of("1s", "60s")
    still = [passes(gate, n, form=form) for n in range(50)]
    assert still == [True] + [False] * 49  # the first, to begin with
    moving = [passes(gate, 50 + n, x=10 + 12 * n, form=form) for n in range(20)]
    assert all(moving)
    after = [passes(gate, 70 + n, form=form) for n in range(100)]
    assert all(after[:10]) and not any(after[60:])


def test_a_heartbeat_passes_and_streams_are_apart() -> None:
    gate = gate_of("0s", "2s")
    assert [n for n in range(100) if passes(gate, n)] == list(range(0, 100, 2 * RATE_HZ))
    other = result_of(frame_of(320, 240, "gray", stream="other"))
    assert gate.process(other) is other
    gate.close()
    assert passes(gate, 100)


def test_light_that_changes_slowly_is_no_motion() -> None:
    gate = gate_of("0s", "1000s")
    assert not any([passes(gate, n, light=n // 6) for n in range(600)][1:])


def test_what_has_come_to_stay_becomes_background() -> None:
    gate = gate_of("0s", "1000s")
    shown = [passes(gate, n, x=None if n < 20 else 150) for n in range(200)]
    assert shown[20] and not any(shown[150:])


def test_another_size_begins_again() -> None:
    gate = gate_of("0s", "1000s")
    assert passes(gate, 0) and not passes(gate, 1)
    assert gate.process(result_of(frame_of(64, 64, "gray", media_ns=10**9))) is not None
