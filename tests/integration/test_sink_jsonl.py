import json
import os
from pathlib import Path

import pytest

from edgert.errors import StageError
from edgert.stages.sink.results import JsonlSink
from tests.helpers.frames import result_of
from tests.helpers.kill import kill_when_it_says_go
from tests.helpers.written import opened

WRITER = """
import itertools, sys
from pathlib import Path
from edgert.stages.sink.results import JsonlSink
from tests.helpers.frames import detections, frame_of, result_of
sink = JsonlSink("events", Path(sys.argv[1]))
sink.open()
outputs = {"find": detections(*[(0, 0, n, n) for n in range(20)])}
for index in itertools.count():
    sink.process(result_of(frame_of(2, 2, index=index), outputs))
    if index == 200:
        print("go", flush=True)
"""


def test_a_full_device() -> None:
    sink = JsonlSink("events", Path("/dev/full"))
    with opened(sink), pytest.raises(StageError, match="cannot write /dev/full") as caught:
        sink.process(result_of())
    assert "No space left" in caught.value.why


def test_a_reader_that_went_away(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with opened(JsonlSink("events", pipe)) as sink:
        sink.process(result_of())
        assert json.loads(os.read(reader, 1 << 16))["stream"] == "camera"
        os.close(reader)
        with pytest.raises(StageError, match="cannot write"):
            sink.process(result_of())


def test_lines_are_whole_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    kill_when_it_says_go(WRITER, path)
    data = path.read_bytes()
    rows = [json.loads(line) for line in data.splitlines()]
    assert data.endswith(b"\n") and [row["frame"] for row in rows] == list(range(len(rows))) and len(rows) > 200
