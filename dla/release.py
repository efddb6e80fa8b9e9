"""Which releases of TensorRT can use a DLA.

From NVIDIA's release notes and the DLA chapter of the TensorRT guide:
https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/getting-started/support-matrix.html,
https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/api/migration/tensorrt-10x-to-11x-jetson.html,
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-with-dla.html.
"""

from __future__ import annotations

import re

from dla.verdict import Verdict

XAVIER, ORIN = 1, 2
"""Generations of the DLA."""

USUAL_RELEASE = {XAVIER: "8.5.2", ORIN: "10.3.0"}
"""TensorRT of the last JetPack for Xavier (5), and of JetPack 6."""

RULE = "release"
_LAST_10 = (10, 7)
_FIRST_11 = (11, 4, 1)
_LAST_XAVIER = (8, 5)  # JetPack 5, where Xavier ends


def supported_by(tensorrt: str, generation: int) -> Verdict:
    """Whether a TensorRT, ``"10.3.0"``, can build and run engines for a DLA of that generation.

    Raises:
        ValueError: that is no version number.
    """
    version = version_numbers(tensorrt)
    if generation == XAVIER and version[:2] > _LAST_XAVIER:
        reason = f"TensorRT {tensorrt} does not support Xavier"
        return Verdict("no", RULE, reason, "use JetPack 5, whose TensorRT is 8.5")
    if version[:2] <= _LAST_10:
        return Verdict("yes", RULE, f"TensorRT {tensorrt} can use it, with INT8 scales from a calibration cache")
    if version < _FIRST_11:
        fix = "use JetPack 6 (TensorRT 10.3), or JetPack 7.2.2 with TensorRT 11.4.1 or later on AGX Orin"
        return Verdict("no", RULE, f"TensorRT {tensorrt} has no DLA: support ends at 10.7 and resumes at 11.4.1", fix)
    reason = f"TensorRT {tensorrt} can use it on AGX Orin, with strongly typed networks only"
    fix = "see what the builder says: num_DLA_cores"
    return Verdict("verify", RULE, f"{reason}; other Orin modules are not named", fix)


def version_numbers(version: str) -> tuple[int, ...]:
    """``"10.3"`` → ``(10, 3, 0)``. Raises ValueError."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None:
        raise ValueError(f"expected a version number like 10.3.0, got {version!r}")
    return tuple(int(part or 0) for part in match.groups())
