"""Builds killed in the middle: the next one makes the very bundle that an undisturbed build makes."""

from pathlib import Path

import pytest

from edgert.bundle.bundle import open_bundle
from tests.helpers.kill import kills, uninterrupted
from tests.helpers.small_pipeline import small_pipeline


def check(pipeline: str, folder: Path, points: int) -> None:
    whole, whole_s = uninterrupted(pipeline, folder / "whole")
    found = list(kills(pipeline, folder / "killed", points, whole_s, seed=points))
    assert [kill.after_s for kill in found if kill.bundle != whole] == []
    assert len(found) == points
    assert [kill.left for kill in found if kill.left not in (b"", whole)] == []
    assert [kill.orphans for kill in found if kill.orphans] == []
    with open_bundle(folder / "whole" / "a.edgert") as bundle:
        assert bundle.manifest.board == "orin-nx-16gb"


@pytest.mark.slow
def test_a_small_build_killed_at_two_points(tmp_path: Path) -> None:
    check(str(small_pipeline(tmp_path / "pipeline")), tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_demo_killed_at_twenty_points(tmp_path: Path) -> None:
    check("hello", tmp_path, 20)
