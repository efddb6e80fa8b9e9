"""Galleries that are damaged anywhere: each is read or refused by name, and a running pipeline keeps what it has."""

import json
import logging
from pathlib import Path
from random import Random

import numpy as np
import pytest

from edgert.errors import ConfigError
from edgert.stages import gallery as module
from edgert.stages.gallery import Gallery
from tests.helpers.damage import damaged


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder, rng = tmp_path_factory.mktemp("galleries"), np.random.default_rng(0)
    names, vectors = np.array([f"person {n} é" for n in range(40)]), rng.normal(0, 1, (40, 128)).astype(np.float32)
    np.savez(folder / "plain.npz", names=names, vectors=vectors)
    np.savez_compressed(folder / "small.npz", names=names, vectors=vectors)
    rows = {name: [row] for name, row in zip(names.tolist(), vectors.tolist(), strict=True)}
    (folder / "text.json").write_text(json.dumps(rows))
    return tuple(sorted(folder.iterdir()))


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_a_damaged_gallery_is_read_or_refused_by_name(
    whole: tuple[Path, ...],
    tmp_path: Path,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.0)
    caplog.set_level(logging.ERROR)
    refused, looked_for = 0, np.ones(128, np.float32)
    for number in range(count):
        good = whole[number % len(whole)]
        path = tmp_path / f"{number}{good.suffix}"
        path.write_bytes(good.read_bytes())
        running = Gallery(path)
        before = running.match(looked_for)
        path.write_bytes(damaged(good.read_bytes(), Random(f"gallery/{number}")))
        try:
            assert Gallery(path).match(looked_for)[0] in running.names or path.suffix == ".json"
        except ConfigError as error:
            refused += 1
            assert path.name in str(error), str(error)
            assert error.fix
            assert running.match(looked_for) == before
        path.unlink()
    assert refused > count / 2
