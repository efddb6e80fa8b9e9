"""Keys, attachments and tokens of rmw_zenoh, byte by byte; and what damaged ones do."""

import random

import pytest

from edgert.recording.cdr import DamagedMessage, decode, encode
from edgert.recording.definitions import COMPRESSED_IMAGE, DETECTIONS, IMAGE
from edgert.stages.ros2 import zenoh_session as wire
from edgert.stages.ros2.ros_link import Quality
from tests.faults.fuzz.mutate import mutated_bytes
from tests.helpers.ros_messages import random_message, typestore

ONE = wire.Attachment(5, 1_700_000_000_123_456_789, bytes(range(16)))
GOLDEN = bytes.fromhex("0500000000000000 15cd853dfe9c971710 000102030405060708090a0b0c0d0e0f".replace(" ", ""))
NAMED = (
    b"\x0fsequence_number\x05\0\0\0\0\0\0\0"
    b"\x10source_timestamp" + GOLDEN[8:16] + b"\x0asource_gid\x10" + bytes(range(16))
)


def test_attachments_are_these_bytes_in_both_forms() -> None:
    assert ONE.to_bytes() == GOLDEN and len(GOLDEN) == 33 and len(NAMED) == 77
    assert wire.read_attachment(GOLDEN) == ONE and wire.read_attachment(NAMED) == ONE


@pytest.mark.parametrize("data", [b"", GOLDEN[:-1], GOLDEN + b"\0", NAMED[:-1], NAMED + b"\0", b"\xff" * 33])
def test_other_bytes_are_no_attachment(data: bytes) -> None:
    assert wire.read_attachment(data) is None


def test_keys_and_tokens_are_these() -> None:
    pytest.importorskip("rosbags", reason="rosbags is not installed: pip install -e '.[ros-test]'")
    store = typestore("jazzy")
    assert {kind: store.hash_rihs01(kind) for kind in wire.HASHES} == wire.HASHES
    key = wire.topic_key(0, "/camera/image_raw", IMAGE)
    assert key == f"0/camera/image_raw/sensor_msgs::msg::dds_::Image_/{wire.HASHES[IMAGE]}"
    assert wire.topic_key(7, "/camera/image_raw") == "7/camera/image_raw/*/*" and wire.kind_of_key(key) == IMAGE
    made = wire.token(0, "aabb", 3, "MP", "cam", "/camera/image_raw", IMAGE, Quality(False))
    rest = f"%camera%image_raw/sensor_msgs::msg::dds_::Image_/{wire.HASHES[IMAGE]}/2::,1:,:,:,,"
    assert made == f"@ros2_lv/0/aabb/0/3/MP/%/%/cam/{rest}"
    assert wire.parse_publisher_token(made) == ("/camera/image_raw", IMAGE)
    latched = wire.token(0, "aabb", 4, "MP", "cam", "/names", DETECTIONS, Quality(True, latched=True))
    assert latched.endswith("/:1:,1:,:,:,,")
    assert wire.token(0, "aabb", 0, "NN", "cam", "", "", Quality(True)) == "@ros2_lv/0/aabb/0/0/NN/%/%/cam"
    changed = made.replace("/MP/", "/MS/"), made.replace("Image_", "Image"), made + "/x"
    for other in (*changed, "", "@ros2_lv/0", "/" * 5000):
        assert wire.parse_publisher_token(other) is None


def try_many(count: int, seed: int) -> None:
    rng = random.Random(seed)
    kinds = (IMAGE, COMPRESSED_IMAGE, DETECTIONS)
    seeds = [(kind, b"".join(encode(kind, random_message(kind, rng)))) for kind in kinds for _ in range(20)]
    for number in range(count):
        kind, data = seeds[number % len(seeds)]
        damaged = mutated_bytes(rng, data)
        try:
            message = decode(kind, damaged)
        except DamagedMessage:
            pass
        else:
            assert sum(map(len, encode(kind, message))) <= 2 * len(damaged) + 64  # nothing grows out of nothing
        wire.read_attachment(mutated_bytes(rng, GOLDEN if number % 2 else NAMED))
        text = wire.token(0, "aabb", 3, "MP", "cam", "/a", IMAGE, Quality(False)).encode()
        damaged_token = mutated_bytes(rng, text).decode("latin-1")
        wire.parse_publisher_token(damaged_token)
        wire.kind_of_key(damaged_token)


def test_damaged_messages_and_attachments_are_refused_or_read() -> None:
    try_many(3000, 1)


@pytest.mark.slow
def test_a_hundred_thousand_damaged_messages_and_attachments() -> None:
    import resource

    try_many(1000, 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try_many(100_000, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
