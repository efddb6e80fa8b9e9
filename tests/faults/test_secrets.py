"""What comes from the environment is never printed: in no error, log line or traceback, however mistyped the file."""

import logging
from pathlib import Path

import pytest

from edgert.errors import StageError, hide, printable, printable_record
from tests.helpers.command import in_process

SECRET = "sesame secret-77"
QUOTED = "sesame%20secret-77"
FILE = """
schema: 1
name: secret
stages:
  cam: {source: "SOURCE", start: fail}
  out: {sink: SINK, from: cam}
"""


@pytest.mark.parametrize("verb", ["run", "validate"])
@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ("rtsp:/admin:${PW}@127.0.0.1:9/x", "null"),
        ("rtsp//admin:${PW}@127.0.0.1:9/x", "null"),
        ("admin:${PW}@cam", "null"),
        ("rtsp://admin:${PW}@127.0.0.1:9/x", "null"),
        ("rtsp://127.0.0.1:9/user=a&passwort=${PW}", "null"),
        ("http://127.0.0.1:9/x?session=${PW}", "null"),
        ("http://127.0.0.1:9/${PW}/x.m3u8", "null"),
        ("${PW}.mp4", "null"),
        ("missing.mp4", "jsonl, path: '/dev/null/${PW}/x.jsonl'"),
        ("missing.mp4", "http, host: '${PW}'"),
    ],
)
def test_a_typo_prints_no_password(
    verb: str,
    source: str,
    sink: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FILE.replace("SOURCE", source).replace("SINK", sink))
    done = in_process(verb, str(file), *(["--debug"] if verb == "run" else []), cwd=tmp_path, env={"PW": SECRET})
    text = "".join((done.stdout, done.stderr, *capfd.readouterr()))
    assert SECRET not in text
    assert QUOTED not in text
    assert done.returncode == 1 or verb == "validate", text


def test_every_form_of_a_value_is_hidden() -> None:
    hide("p@ss/w\\rd", "PW")
    assert printable("rtsp://me:p%40ss/w%5Crd@x p%40ss%2Fw%5Crd p@ss/w\\rd 'p@ss/w\\\\rd'") == (
        "rtsp://me:${PW}@x ${PW} ${PW} '${PW}'"
    )
    hide("abc", "SHORT")  # would make nonsense of other words
    assert printable("abcd") == "abcd"


def test_errors_and_log_lines_hide_it() -> None:
    hide(SECRET, "PW")
    error = StageError(f"cannot open {SECRET}", why=SECRET, others=[StageError(SECRET)])
    assert SECRET not in str(error) + repr(error.to_json())
    record = logging.LogRecord("edgert", logging.INFO, "", 0, "lost %s after %d s", (SECRET, 3), None)
    assert printable_record(record)
    assert record.getMessage() == "lost ${PW} after 3 s"
