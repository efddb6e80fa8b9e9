"""No password comes through."""

from __future__ import annotations

import pytest

from edgert.stages.source.live import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://bob:s3cret@cam.local/live", "rtsp://***@cam.local/live"),
        ("rtsp://s3cret@cam.local/live", "rtsp://***@cam.local/live"),
        ("rtsp://bob:s3cret@x@cam/live", "rtsp://***@cam/live"),
        ("rtsp://bob:s3/cret@cam/live", "rtsp://***@cam/live"),
        ("cannot open 'rtsp://bob:s3cret@cam/a' again", "cannot open 'rtsp://***@cam/a' again"),
        ("http://cam/video?user=bob&password=s3cret&fps=5", "http://cam/video?user=bob&password=***&fps=5"),
        ("http://cam/v?token=s3cret", "http://cam/v?token=***"),
        ("rtsp://cam/user=bob_password=s3cret_channel=1", "rtsp://cam/user=bob_password=***"),
        (
            'rtspsrc location=rtsp://cam/1 user-id=bob user-pw="s3cret" ! x',
            "rtspsrc location=rtsp://cam/1 user-id=bob user-pw=*** ! x",
        ),
        ("no secret here: 3@4", "no secret here: 3@4"),
        ("rtsp://cam.local:554/live", "rtsp://cam.local:554/live"),
    ],
)
def test_secrets_are_hidden_and_the_rest_stays(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert "cret" not in redact(text) or "s3" not in redact(text)
