"""Who runs a bundle on a machine, and what is said about those who do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgert.board import HOST, Machine
from edgert.board.record import board
from edgert.build.unpack import choose, unpacked
from edgert.errors import ArtifactError, BuildError
from tests.helpers.bundles import bundle, manifest_of

HERE = Machine(HOST, None, "", (), "", "", "x86", 2, 2, 2**33)
ORIN = replace(HERE, name="orin-nx-16gb", board=board("orin-nx-16gb"), l4t="36.4.3", jetpack="6.2")


def test_a_jetsons_bundle_falls_back_here_and_says_why() -> None:
    engine, skipped = choose(manifest_of(), HERE, "dock.edgert")
    assert engine == "onnxruntime"
    assert [one.engine for one in skipped] == ["tensorrt-dla", "tensorrt", "onnxruntime-cuda"]
    assert "orin-nx-16gb only" in skipped[0].why and "processor" in skipped[2].why
    assert str(skipped[1]).startswith("tensorrt skipped: its engines")


def test_strict_refuses_what_it_would_skip(tmp_path: Path) -> None:
    path = bundle(tmp_path / "dock.edgert")
    with (
        pytest.raises(BuildError, match="tensorrt-dla cannot run") as caught,
        unpacked(path, strict=True, machine=HERE),
    ):
        pass
    assert "--strict" in caught.value.fix and "onnxruntime" in caught.value.fix


def test_a_bundle_for_another_board_is_refused() -> None:
    for other in ("agx-orin-64gb", "jetson"):
        machine = replace(ORIN, name=other, board=board(other) if other != "jetson" else None)
        with pytest.raises(ArtifactError, match="for orin-nx-16gb") as caught:
            choose(manifest_of(), machine, "dock.edgert")
        assert other in caught.value.why and "--board" in caught.value.fix
    choose(manifest_of(), ORIN, "dock.edgert")
    choose(manifest_of(board=HOST, engines=["onnxruntime"]), ORIN, "dock.edgert")


def test_no_engine_left_is_an_error_that_lists_them() -> None:
    with pytest.raises(BuildError, match="no engine can run") as caught:
        choose(manifest_of(engines=["tensorrt", "abacus"]), HERE, "dock.edgert")
    assert "tensorrt skipped" in caught.value.why and "no engine 'abacus'" in caught.value.why


def test_unpacked_files_are_there_inside_the_block_only(tmp_path: Path) -> None:
    path = bundle(tmp_path / "dock.edgert")
    with unpacked(path, ["name=renamed"], machine=HERE) as found:
        folder = found.file.document.path.parent
        assert found.file.config.name == "renamed"
        files = {one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()}
        assert files == {"pipeline.yaml", "models/parts/model.onnx"}
    assert not folder.exists()


def test_nothing_of_a_damaged_bundle_is_unpacked(tmp_path: Path) -> None:
    path = bundle(tmp_path / "dock.edgert")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged"), unpacked(path, machine=HERE):
        pytest.fail("it was opened")
