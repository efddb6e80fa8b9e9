import errno
import json
import math
import os
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest

from edgert.errors import StageError
from edgert.runtime.json_form import plain_result
from edgert.runtime.records import Embedding
from edgert.stages.sink.results import JsonlSink
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.written import opened, write


def results(count: int) -> list[object]:
    return [result_of(frame_of(index=n), {"find": detections((n, 0, 9, 9), ids=(n + 1,))}) for n in range(count)]


def test_every_result_is_one_line_that_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "out.jsonl"
    with opened(JsonlSink("events", path)) as sink:
        written = results(5)
        for number, result in enumerate(written):
            sink.process(result)
            assert path.read_bytes().count(b"\n") == number + 1  # readable at once
    found = [json.loads(line) for line in path.read_text().splitlines()]
    times = {"time": ANY, "time_ns": ANY}  # of the epoch, by the clock as it was set just then
    assert found == [{**plain_result(one), **times} for one in written]


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old\n" * 100)
    sink = JsonlSink("events", path)
    write(sink)
    sink.close()
    assert path.read_bytes() == b""


def test_every_stream_has_a_file_of_its_own(tmp_path: Path) -> None:
    streams = enumerate(["north", "south", "north", "../up"])
    results = (result_of(frame_of(stream=stream, index=index)) for index, stream in streams)
    write(JsonlSink("events", tmp_path / "{stream}" / "out.jsonl"), *results)
    found = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.jsonl")}
    frames = {path: [json.loads(line)["frame"] for line in text.splitlines()] for path, text in found.items()}
    assert frames == {"north/out.jsonl": [0, 2], "south/out.jsonl": [1], "_._up/out.jsonl": [3]}


def test_other_fields_of_a_path_are_refused() -> None:
    with pytest.raises(StageError, match=r"unknown field \{streem\}; did you mean 'stream'"):
        JsonlSink("events", Path("out/{streem}.jsonl"))
    with pytest.raises(StageError, match=r"unknown field \{frame\}"):
        JsonlSink("events", Path("out/{frame}.jsonl"))


def test_text_of_any_kind_stays_on_its_line(tmp_path: Path) -> None:
    text = 'grün 日本 \n \u2028 "q" \\ \x00 ' + "\udc80"
    write(JsonlSink("events", tmp_path / "out.jsonl"), result_of(outputs={"mine": {"text": text, "nan": math.nan}}))
    data = (tmp_path / "out.jsonl").read_bytes()
    assert data.count(b"\n") == 1 and "grün 日本".encode() in data and b"NaN" not in data
    assert json.loads(data)["outputs"]["mine"] == {"text": text, "nan": None}


def test_a_record_without_a_json_form_names_the_stage(tmp_path: Path) -> None:
    with opened(JsonlSink("events", tmp_path / "out.jsonl")) as sink:
        sink.process(result_of(outputs={"good": 1}))
        with pytest.raises(StageError, match=r"builtins\.object") as caught:
            sink.process(result_of(outputs={"mine": object()}))
    assert caught.value.where == "stages.mine"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


def test_a_line_that_did_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, room, write = tmp_path / "out.jsonl", [1000], os.write

    def small_disk(file: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(file, data[: room[0]])
        room[0] -= done
        return done

    with opened(JsonlSink("events", path)) as sink:
        monkeypatch.setattr(os, "write", small_disk)
        with pytest.raises(StageError, match="cannot write") as caught:
            for _ in range(100):
                sink.process(result_of(outputs={"e": Embedding(np.ones(20, np.float32))}))
    assert "No space left" in caught.value.why and caught.value.fix and caught.value.where == "stages.events"
    lines = path.read_text().splitlines()
    assert 0 < len(lines) < 100 and all(json.loads(line)["stream"] == "camera" for line in lines)


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "out.jsonl", tmp_path):
        with pytest.raises(StageError):
            JsonlSink("events", path).open()
