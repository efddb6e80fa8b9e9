"""Keys, attachments and tokens of rmw_zenoh, byte by byte; and what damaged ones do."""

from __future__ import annotations

import random

import pytest

from edgert.stages.ros2.cdr import DamagedMessage, decode, encode
from edgert.stages.ros2.definitions import COMPRESSED_IMAGE, DETECTIONS, IMAGE
from edgert.stages.ros2.ros_link import Quality
from edgert.stages.ros2.zenoh_session import (
    HASHES,
    Attachment,
    kind_of_key,
    parse_publisher_token,
    read_attachment,
    token,
    topic_key,
)
from tests.helpers.ros_messages import random_message, typestore

ONE = Attachment(5, 1_700_000_000_123_456_789, bytes(range(16)))
GOLDEN = bytes.fromhex("0500000000000000 15cd853dfe9c971710 000102030405060708090a0b0c0d0e0f".replace(" ", ""))
NAMED = (
    b"\x0fsequence_number\x05\0\0\0\0\0\0\0"
    b"\x10source_timestamp" + GOLDEN[8:16] + b"\x0asource_gid\x10" + bytes(range(16))
)


def test_attachments_are_these_bytes_in_both_forms() -> None:
    assert ONE.to_bytes() == GOLDEN and len(GOLDEN) == 33 and len(NAMED) == 77
    assert read_attachment(GOLDEN) == ONE and read_attachment(NAMED) == ONE


@pytest.mark.parametrize("data", [b"", GOLDEN[:-1], GOLDEN + b"\0", NAMED[:-1], NAMED + b"\0", b"\xff" * 33])
def test_other_bytes_are_no_attachment(data: bytes) -> None:
    assert read_attachment(data) is None


def test_keys_and_tokens_are_these() -> None:
    pytest.importorskip("rosbags", reason="rosbags is not installed: pip install -e '.[ros-test]'")
    store = typestore("jazzy")
    assert {kind: store.hash_rihs01(kind) for kind in HASHES} == HASHES
    key = topic_key(0, "/camera/image_raw", IMAGE)
    assert key == f"0/camera/image_raw/sensor_msgs::msg::dds_::Image_/{HASHES[IMAGE]}"
    assert topic_key(7, "/camera/image_raw") == "7/camera/image_raw/*/*" and kind_of_key(key) == IMAGE
    made = token(0, "aabb", 3, "MP", "cam", "/camera/image_raw", IMAGE, Quality(False))
    rest = f"%camera%image_raw/sensor_msgs::msg::dds_::Image_/{HASHES[IMAGE]}/2::,1:,:,:,,"
    assert made == f"@ros2_lv/0/aabb/0/3/MP/%/%/cam/{rest}"
    assert parse_publisher_token(made) == ("/camera/image_raw", IMAGE)
    latched = token(0, "aabb", 4, "MP", "cam", "/names", DETECTIONS, Quality(True, latched=True))
    assert latched.endswith("/:1:,1:,:,:,,")
    assert token(0, "aabb", 0, "NN", "cam", "", "", Quality(True)) == "@ros2_lv/0/aabb/0/0/NN/%/%/cam"
    for other in (
        made.replace("/MP/", "/MS/"),
        "",
        "@ros2_lv/0",
        made + "/x",
        made.replace("Image_", "Image"),
        "/" * 5000,
    ):
        assert parse_publisher_token(other) is None


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few of them changed, cut off, repeated, or lengths made huge."""
    found = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at, kind = rng.randrange(len(found) + 1), rng.randrange(5)
        if kind == 0 and found:
            found[min(at, len(found) - 1)] = rng.randrange(256)
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found[at:at] = rng.randbytes(rng.randrange(9))
        elif kind == 3:
            at &= ~3
            found[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\1\0", b"\0\0\0\0"])
        else:
            found += found[at : at + 16]
    return bytes(found)


def try_many(count: int, seed: int) -> None:
    rng = random.Random(seed)
    kinds = (IMAGE, COMPRESSED_IMAGE, DETECTIONS)
    seeds = [(kind, b"".join(encode(kind, random_message(kind, rng)))) for kind in kinds for _ in range(20)]
    for number in range(count):
        kind, data = seeds[number % len(seeds)]
        damaged = mutated(data, rng)
        try:
            message = decode(kind, damaged)
        except DamagedMessage:
            pass
        else:
            assert sum(map(len, encode(kind, message))) <= 2 * len(damaged) + 64  # nothing grows out of nothing
        read_attachment(mutated(GOLDEN if number % 2 else NAMED, rng))
        text = mutated(token(0, "aabb", 3, "MP", "cam", "/a", IMAGE, Quality(False)).encode(), rng).decode("latin-1")
        parse_publisher_token(text)
        kind_of_key(text)


def test_damaged_messages_and_attachments_are_refused_or_read() -> None:
    try_many(3000, 1)


@pytest.mark.slow
def test_a_hundred_thousand_damaged_messages_and_attachments() -> None:
    import resource

    try_many(1000, 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try_many(100_000, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
