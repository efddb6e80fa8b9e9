"""A process that answers every Image over Zenoh with a Detection2DArray: python -m tests.helpers.zenoh_echo ADDRESS."""

import sys
from typing import Any

from edgert.recording.cdr import decode, encode
from edgert.recording.definitions import COMPRESSED_IMAGE, DETECTIONS, IMAGE
from edgert.stages.ros2.ros_link import Quality
from edgert.stages.ros2.zenoh_session import endpoint_of, shared_session


def router(port: int) -> Any:
    """Return a session that is the router, as rmw_zenohd would be."""
    import zenoh

    config = zenoh.Config()
    config.insert_json5("mode", '"router"')
    config.insert_json5("listen/endpoints", f'["tcp/127.0.0.1:{port}"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    return zenoh.open(config)


def main() -> None:
    link = shared_session("echo", endpoint_of(sys.argv[1], "echo"), 5, "echo")
    answers = link.publisher("/echo/detections", DETECTIONS, Quality(True, depth=10))

    def answer(kind: str, data: bytes | memoryview) -> None:
        message = decode(kind, data)
        about = {key: value for key, value in message.items() if key.startswith("header.")}
        name = f"{kind}:{bytes(message['data'][:4]).hex()}"
        box = {**about, "id": str(message.get("width", 0)), "results": [{"hypothesis.class_id": name}]}
        answers.publish(encode(DETECTIONS, {**about, "detections": [box]}))

    quality = Quality(True, depth=10)
    heard = [
        link.subscribe("/cam/image", IMAGE, quality, lambda data, lost: answer(IMAGE, data)),
        link.subscribe("/cam/jpeg", COMPRESSED_IMAGE, quality, lambda data, lost: answer(COMPRESSED_IMAGE, data)),
    ]
    print("ready", flush=True)
    sys.stdin.read()
    for one in heard:
        one.close()
    answers.close()
    link.close()


if __name__ == "__main__":
    main()
