"""Bags whose maker meant no good: values of other types, queries without an end, chunks that unpack to anything."""

import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edgert import limits
from edgert.errors import StageError
from edgert.recording.cdr import encode
from edgert.recording.definitions import IMAGE
from edgert.stages.ros2.bag_source import bag_at

DATA = b"".join(encode(IMAGE, {"height": 1, "width": 1, "encoding": "mono8", "step": 1, "data": b"x"}))
TABLES = """
CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT);
CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB);
"""
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id FROM n WHERE i < 0"


def sqlite_bag(path: Path, *rows: tuple[Any, ...], script: str = TABLES) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)
        if rows:
            database.execute("INSERT INTO topics VALUES (1, '/cam', ?)", (IMAGE,))
            database.execute("INSERT INTO topics VALUES (2, NULL, NULL)")
            database.executemany("INSERT INTO messages(topic_id, timestamp, data) VALUES (?, ?, ?)", rows)
        database.commit()
    return path


def test_rows_of_other_types_are_left_out(tmp_path: Path) -> None:
    odd = ((1, 1, None), (1, 2, "text"), (1, 3, 5), (1, "later", DATA), (1, None, DATA), (1, 1e300, DATA))
    bag = bag_at(sqlite_bag(tmp_path / "odd.db3", (1, 7, DATA), *odd), "stages.cam")
    assert bag.topics == {"/cam": IMAGE}
    assert list(bag.messages(["/cam"])) == [("/cam", 7, DATA)]


@pytest.mark.parametrize("script", ["", f"CREATE VIEW topics AS {ENDLESS}; CREATE VIEW messages AS {ENDLESS};"])
def test_a_database_without_the_tables_of_a_bag_is_named_at_once(tmp_path: Path, script: str) -> None:
    with pytest.raises(StageError, match="not a bag of ROS 2") as caught:
        bag_at(sqlite_bag(tmp_path / "view.db3", script=script), "stages.cam")
    assert "no tables topics and messages" in str(caught.value)


def mcap_bag(path: Path, data: bytes, compression: bytes, size_bytes: int, summary: int = 0) -> Path:
    """Write an MCAP file of one chunk, with a footer that says where the summary begins."""
    magic, packed = b"\x89MCAP0\r\n", struct.pack("<I", len(compression)) + compression
    body = struct.pack("<QQQI", 0, 1, size_bytes, 0) + packed + struct.pack("<Q", len(data)) + data
    head = struct.pack("<I4sI", 4, b"ros2", 0)
    records = ((b"\x01", head), (b"\x06", body), (b"\x02", struct.pack("<QQI", summary, 0, 0)))
    path.write_bytes(magic + b"".join(op + struct.pack("<Q", len(one)) + one for op, one in records) + magic)
    return path


@pytest.mark.parametrize("summary", [0, 29, (1 << 63) - 1])
@pytest.mark.parametrize("compression", ["zstd", "lz4", ""])
def test_a_chunk_that_unpacks_to_more_than_it_says_or_may_is_damage(
    tmp_path: Path, compression: str, summary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mcap = pytest.importorskip("mcap.stream_reader", reason="mcap is not installed: pip install -e '.[ros-test]'")
    import lz4.frame
    import zstandard

    monkeypatch.setattr(mcap, "breakup_chunk", lambda *_, **__: pytest.fail("a chunk was unpacked"))
    pack = {"zstd": zstandard.compress, "lz4": lz4.frame.compress}.get(compression, bytes)
    data = pack(bytes(1 << 20))
    for said, why in ((100, "not as long as it says"), (limits.BAG_CHUNK_BYTES + 1, "the limit is 134217728")):
        file = mcap_bag(tmp_path / "bomb.mcap", data, compression.encode(), said, summary)
        with pytest.raises(StageError, match=why):
            bag_at(file, "stages.cam")
    file.write_bytes(file.read_bytes()[:8])
    with pytest.raises(StageError, match="not a bag of ROS 2"):
        bag_at(file, "stages.cam")
