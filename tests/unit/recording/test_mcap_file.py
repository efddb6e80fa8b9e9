"""MCAP files: read by MCAP's own reader, by ours as far as they are whole, and never with a traceback."""

import io
import random
import struct
import zlib
from pathlib import Path

import pytest

from edgert.errors import ArtifactError, EdgertError
from edgert.recording.mcap_file import MAGIC, Damage, McapWriter, Topic, read_messages
from edgert.recording.recording import _HEAD, _is_entry, open_recording
from edgert.replayer.replayed import replay
from tests.helpers.recordings import record_tiny

A = Topic("/a", "a.A", b'{"type": "object"}')
B = Topic("/b", "std_msgs/msg/String", b"string data", is_cdr=True)


def file_of(chunks: int, messages: int = 3) -> bytes:
    """Return a file whose messages are numbered, in chunks."""
    writer = McapWriter("edgert")
    data = writer.begin()
    for chunk in range(chunks):
        for number in range(messages):
            at_ns = 1_000_000 * (chunk + 1) + number
            writer.add(A, at_ns, at_ns - 5, b'{"n":%d}' % (chunk * messages + number))
        writer.add(B, at_ns, 7, b"\0\1\0\0", b"\3\0\0\0hi\0", sequence=41)
        data += writer.close_chunk()
    return data + writer.end()


def test_the_file_is_read_by_mcaps_own_reader(tmp_path: Path) -> None:
    pytest.importorskip("mcap", reason="mcap (extra 'mcap') is not installed")
    from mcap.reader import make_reader
    from mcap.stream_reader import StreamReader

    data = file_of(4)
    summary = make_reader(io.BytesIO(data)).get_summary()
    assert summary is not None
    assert summary.statistics is not None
    assert (summary.statistics.message_count, summary.statistics.chunk_count) == (16, 4)
    assert (summary.statistics.message_start_time, summary.statistics.message_end_time) == (1_000_000, 4_000_002)
    seeking = [(channel.topic, one.log_time, one.publish_time, one.data)
               for _, channel, one in make_reader(io.BytesIO(data)).iter_messages(log_time_order=False)]  # fmt: skip
    (tmp_path / "a.mcap").write_bytes(data)
    own = [(one.topic, one.log_ns, one.publish_ns, bytes(one.data))
           for one in read_messages(tmp_path / "a.mcap", Damage())]  # fmt: skip
    assert [one for one in own if one[0] == "/a"] == [one for one in seeking if one[0] == "/a"]
    assert len(list(StreamReader(io.BytesIO(data), validate_crcs=True).records)) > 16


def test_ros_reads_what_is_cdr() -> None:
    pytest.importorskip("mcap_ros2", reason="mcap-ros2-support (extra 'mcap') is not installed")
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    reader = make_reader(io.BytesIO(file_of(1)), decoder_factories=[DecoderFactory()])
    ((_, _, message, found),) = reader.iter_decoded_messages(topics=["/b"])
    assert (found.data, message.sequence) == ("hi", 41)


def test_a_file_cut_anywhere_gives_all_whole_chunks_and_says_what_is_lost(tmp_path: Path) -> None:
    data, cut = file_of(10), tmp_path / "cut.mcap"
    ends = _chunk_ends(data)
    for size in random.Random(1).sample(range(len(MAGIC), len(data)), 200):
        cut.write_bytes(data[:size])
        damage = Damage()
        found = [one for one in read_messages(cut, damage) if one.topic == "/a"]
        assert len(found) == 3 * sum(end <= size for end in ends)
        if damage.is_cut:
            assert damage.nbytes == size - max((end for end in _record_ends(data) if end <= size), default=len(MAGIC))
            assert "at most 1 s" in str(damage)


def test_a_recording_cut_at_200_places_is_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = record_tiny(tmp_path)
    data, cut = whole.read_bytes(), tmp_path / "cut.mcap"
    for size in random.Random(2).sample(range(len(data)), 200):
        cut.write_bytes(data[:size])
        try:
            made = replay(cut)
        except EdgertError as error:
            assert "cut.mcap" in str(error)
        else:
            assert not made.different
            assert any("has no end" in note for note in made.notes) or size >= _chunk_ends(data)[-1]


def test_a_damaged_chunk_costs_itself_alone(tmp_path: Path) -> None:
    data = bytearray(file_of(5))
    data[_chunk_ends(bytes(data))[2] - 20] ^= 1
    (tmp_path / "a.mcap").write_bytes(data)
    damage = Damage()
    assert len([one for one in read_messages(tmp_path / "a.mcap", damage) if one.topic == "/a"]) == 12
    assert (damage.chunks, damage.is_cut) == (1, False)
    assert str(damage) == "1 damaged chunks were left out"


def test_a_length_beyond_the_file_or_the_chunk_is_the_end(tmp_path: Path) -> None:
    data = bytearray(file_of(2))
    struct.pack_into("<Q", data, len(MAGIC) + 1, 2**63)
    (tmp_path / "a.mcap").write_bytes(data)
    damage = Damage()
    assert not list(read_messages(tmp_path / "a.mcap", damage))
    assert damage.nbytes == len(data) - len(MAGIC)


def test_other_files_are_named(tmp_path: Path) -> None:
    for content, why in ((b"", "it is empty"), (b"RIFF" * 9, "it does not begin like one")):
        (tmp_path / "a.mcap").write_bytes(content)
        with pytest.raises(ArtifactError, match=why):
            list(read_messages(tmp_path / "a.mcap", Damage()))
    with pytest.raises(ArtifactError, match="No such file"):
        list(read_messages(tmp_path / "none.mcap", Damage()))
    (tmp_path / "a.mcap").write_bytes(file_of(1))
    with pytest.raises(ArtifactError, match="not a recording of edgert"):
        open_recording([tmp_path / "a.mcap"])


def test_compressed_chunks_are_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    about = struct.pack("<QQQI", 1, 1, 9, 0) + struct.pack("<I", 4) + b"zstd" + struct.pack("<Q", 3) + b"abc"
    (tmp_path / "a.mcap").write_bytes(MAGIC + struct.pack("<BQ", 6, len(about)) + about)
    with pytest.raises(ArtifactError, match="compressed with zstd") as raised:
        list(read_messages(tmp_path / "a.mcap", Damage()))
    assert "mcap compress --compression none" in raised.value.fix


def _record_ends(data: bytes) -> list[int]:
    at, ends = len(MAGIC), []
    while at + 9 <= len(data) - len(MAGIC):
        at += 9 + struct.unpack_from("<BQ", data, at)[1]
        ends.append(at)
    return ends


def _chunk_ends(data: bytes) -> list[int]:
    at, ends = len(MAGIC), []
    for end in _record_ends(data):
        if data[at] == 6:
            ends.append(end)
            assert zlib.crc32(data[at + 9 + 40 : end]) == struct.unpack_from("<I", data, at + 9 + 24)[0]
        at = end
    return ends


def test_a_time_that_no_date_has_is_damage() -> None:
    row = [0, "give", "cam", "cam", 0, 0, [10**30, 0, None, 8, 8, 0]]
    assert not _is_entry(row) and not _HEAD["offset_ns"](10**30)
