"""Bundles killed while TensorRT-RTX compiles them, and damaged when finished. Skipped where it is missing."""

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from edgert.bundle.bundle import Bundle, open_bundle
from edgert.compiler.finish import finish
from edgert.compiler.unpack import unpacked
from edgert.errors import ArtifactError
from tests.helpers.kill import BUNDLE, kills, uninterrupted
from tests.helpers.trt_bundle import trt_bundle

pytestmark = pytest.mark.skipif(
    not any(map(find_spec, ("tensorrt_rtx", "tensorrt_rtx_bindings"))),
    reason="TensorRT-RTX is not installed (pip install tensorrt-rtx)",
)


def content(bundle: Bundle) -> dict[str, Any]:
    """Member → what it holds, without what no two compilations say alike: how long it took, and the log's times."""
    found: dict[str, Any] = {path: bundle.read(path) for path in bundle.manifest.members}
    for entry in bundle.manifest.compiled.values():
        for engine in (one for engines in entry.engines.values() for one in engines):
            record = json.loads(found[engine.record])
            for name in ("seconds", "log"):
                del record["result"][name]
            found[engine.record] = record
    return found


def content_of(data: bytes, folder: Path) -> dict[str, Any]:
    path = folder / f"read{BUNDLE}"
    path.write_bytes(data)
    with open_bundle(path) as bundle:
        return content(bundle)


def check(folder: Path, points: int) -> None:
    """Kills, finishes again, compares; what a kill leaves is the bundle as it was, or the finished one."""
    given = trt_bundle(folder / "dock.edgert")
    whole, whole_s = uninterrupted(str(given), folder / "whole")
    wanted, before = content_of(whole, folder), given.read_bytes()
    found = list(kills(str(given), folder / "killed", points, whole_s, seed=points))
    assert [kill.after_s for kill in found if content_of(kill.bundle, folder) != wanted] == []
    assert [kill.after_s for kill in found if kill.left != before and content_of(kill.left, folder) != wanted] == []
    assert [kill.after_s for kill in found if kill.orphans] == []
    assert len(found) == points and any(path.endswith(".plan") for path in wanted)


@pytest.mark.slow
def test_finishing_killed_at_two_points(tmp_path: Path) -> None:
    check(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_finishing_killed_at_twenty_points(tmp_path: Path) -> None:
    check(tmp_path, 20)


@pytest.mark.parametrize("kind", ["plan", "record", "checks"])
def test_a_flipped_byte_of_an_engine_is_refused_and_never_run(finished: Path, tmp_path: Path, kind: str) -> None:
    with open_bundle(finished) as bundle:
        (entry,) = bundle.manifest.compiled.values()
        member = bundle.read(getattr(entry.engines["parts"][0], kind))
    whole, chance = finished.read_bytes(), random.Random(kind)
    start, path = whole.index(member), tmp_path / "flipped.edgert"
    for place in (start, start + len(member) - 1, *(start + chance.randrange(len(member)) for _ in range(20))):
        flipped = bytearray(whole)
        flipped[place] ^= chance.randrange(1, 256)
        path.write_bytes(flipped)
        with pytest.raises(ArtifactError, match="damaged"):
            finish(path)
    with pytest.raises(ArtifactError, match="damaged"), unpacked(path):
        pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGERT_CACHE", str(folder / "cache"))
        finish(trt_bundle(folder / "dock.edgert"), folder / "out.edgert")
    return folder / "out.edgert"
