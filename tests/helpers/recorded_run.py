"""What the threads of a pipeline did, made up: with everything that a recording can have."""

import random

from edgert.tracing import Event, Recorded, ThreadEvents

BEGAN = 10**15  # eleven days


def recording(frames: int = 200, seed: int = 1, camera: str = "cam") -> Recorded:
    pick, cam, find, more = random.Random(seed), list[Event](), list[Event](), list[Event]()
    free_ns = 0
    for index in range(frames):
        at = BEGAN + index * 1_000_000
        cam.append(("give", at, at + 200_000, camera, camera, index, at - 50_000))
        cam.append(("put", at + 210_000, at + 210_000, "find", camera, index, 0))
        if pick.random() < 0.1:
            cam.append(("drop", at + 400_000, at + 400_000, "find", camera, index, "queue"))
            continue
        begin = max(free_ns, at + 250_000)
        free_ns = begin + pick.randrange(100_000, 1_500_000)
        middle = (begin + free_ns) // 2
        find.append(("part", begin, middle, "engine", "", -1, None))
        find.append(("copy", middle, middle, "copy", "", -1, 921_600))
        find.append(("step", begin, free_ns, "find", camera, index, None))
        more.append(("submit", free_ns, free_ns + 10, "parts", camera, index, [(camera, index)]))
        more.append(("collect", free_ns + 500_000, free_ns + 500_100, "parts", camera, index, [(camera, index)]))
    cam.append(("fail", BEGAN + 9 * 10**9, BEGAN + 9 * 10**9, "find", camera, 3, "no such layer: \N{SNOWMAN}"))
    find.append(("gpu", BEGAN, BEGAN + 9_000, "parts", "", -1, 4))
    find.append(("room", BEGAN + 9_000_000_000, BEGAN + 9_000_000_100, "track", "", -1, None))
    control: list[Event] = [("operation", BEGAN + 3, BEGAN + 9, "set x=1", "", -1, {"by": "user 0", "result": "done"})]
    governor: list[Event] = [("governor", BEGAN + 7, BEGAN + 7, "switch: half", "", -1, {"reason": "too hot"})]
    threads = [
        ThreadEvents("edgert:cam", 100, cam),
        ThreadEvents("edgert:find", 101, find, 17),
        ThreadEvents("edgert:parts", 102, more),
        ThreadEvents("edgert:changes", 103, control),
        ThreadEvents("governor", 0, governor),
    ]
    return Recorded("belt", 42, BEGAN, BEGAN + 10**10, 7 * 10**17, threads)
