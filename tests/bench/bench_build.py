"""Building: the demo for a Jetson ≤ 60 s cold and ≤ 1.5 s unchanged, bundle ≤ 1.3 × its models; kills and flips.

python tests/bench/bench_build.py [--json FILE]

Kills builds with SIGKILL at KILLS random points, each from an empty cache, and builds again: the bundle must be, byte
by byte, that of a build that nobody disturbed. Flips one bit of the bundle at FLIPS random bytes and at every byte of
its first and last headers: each copy must be refused.
"""

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from report import main

from edgert.benchmark.measure import Figure
from edgert.bundle.bundle import open_bundle
from edgert.errors import ArtifactError

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.helpers.command import environment
from tests.helpers.kill import build_command, kills, uninterrupted

PIPELINE = "hello"
AGAIN, KILLS, FLIPS = 7, 20, 300
_COLD_S, _WARM_S, _RATIO = 60.0, 1.5, 1.3


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, cold_s = uninterrupted(PIPELINE, folder / "whole")
        bundle = folder / "whole" / "a.edgert"
        yield Figure("build cold", cold_s, "s", bar=_COLD_S, better="lower", n=1)
        warm = [_again(bundle) for _ in range(AGAIN)]
        yield Figure("build unchanged", statistics.median(warm), "s", bar=_WARM_S, better="lower", n=AGAIN)
        with open_bundle(bundle) as opened:
            models_bytes = opened.manifest.onnx_bytes
        detail = {"bundle_bytes": len(whole), "models_bytes": models_bytes}
        yield Figure("bundle / models", len(whole) / models_bytes, "", _RATIO, "lower", n=1, detail=detail)
        yield _killed(folder, whole, cold_s)
        yield _flipped(folder, whole)


def _again(bundle: Path) -> float:
    env = environment({"EDGERT_CACHE": str(bundle.parent / "cache")})
    started = time.monotonic()
    subprocess.run(build_command(PIPELINE, bundle), env=env, check=True, capture_output=True)
    return time.monotonic() - started


def _killed(folder: Path, whole: bytes, cold_s: float) -> Figure:
    found = list(kills(PIPELINE, folder / "killed", KILLS, cold_s))
    wrong = sum(kill.bundle != whole for kill in found)
    detail = {"entries_kept": sum(kill.kept for kill in found), "latest_s": max(kill.after_s for kill in found)}
    return Figure("wrong bundles after kill -9", wrong, "", 0, "lower", n=KILLS, detail=detail)


def _flipped(folder: Path, whole: bytes) -> Figure:
    chance = random.Random(0)
    ends = [*range(100), *range(len(whole) - 2000, len(whole))]
    places = [*ends, *(chance.randrange(len(whole)) for _ in range(FLIPS))]
    accepted = sum(
        not _is_refused(folder / "flipped.edgert", whole, place, 1 << chance.randrange(8)) for place in places
    )
    return Figure("flipped bundles that were opened", accepted, "", 0, "lower", n=len(places))


def _is_refused(path: Path, whole: bytes, place: int, bit: int) -> bool:
    content = bytearray(whole)
    content[place] ^= bit
    path.write_bytes(content)
    try:
        open_bundle(path).close()
    except ArtifactError:
        return True
    return False


if __name__ == "__main__":
    main(__doc__.splitlines()[0], measure)
