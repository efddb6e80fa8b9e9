"""A request to a running pipeline and its answer, as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgert.errors import ConfigError, EdgertError, error_of, nearest
from edgert.runtime.json_form import plain

VERBS = {
    "show": "",
    "set": "KEY=VALUE",
    "pause": "SOURCE",
    "resume": "SOURCE",
    "add": "STAGE URL [LIKE]",
    "remove": "SOURCE",
    "save": "",
}
"""Verb → its words."""


@dataclass(frozen=True, slots=True)
class Request:
    """One operation.

    Attributes:
        verb: of :data:`VERBS`.
        words: what follows it on a command line.
    """

    verb: str
    words: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ConfigError for an unknown verb, or a wrong number of words."""
        if self.verb not in VERBS:
            what = f"{self.verb!r} is no verb of edgert ctl{nearest(self.verb, VERBS)}"
            raise ConfigError(what, fix=f"one of {', '.join(VERBS)}")
        wanted = VERBS[self.verb].split()
        least = sum(not word.startswith("[") for word in wanted)
        if not least <= len(self.words) <= len(wanted):
            what = f"{self.verb} takes {least or 'no'} word{'s' * (least != 1)}, not {len(self.words)}"
            raise ConfigError(what, fix=f"edgert ctl {self.verb} {VERBS[self.verb]}".rstrip())


def line_of(data: Mapping[str, Any]) -> bytes:
    """Return a mapping as a line of JSON."""
    return json.dumps(plain(data), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def request_of(line: bytes) -> Request:
    """Return the request in a line of JSON. Raises ConfigError."""
    try:
        data = json.loads(line)
        verb, words = data["verb"], data.get("words", [])
        is_one = isinstance(verb, str) and isinstance(words, list) and all(isinstance(word, str) for word in words)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        is_one = False
    if not is_one:
        fix = 'a line like {"verb": "set", "words": ["stages.find.every=2"]}'
        raise ConfigError("this line is no request", why="it is no JSON object with a verb and words", fix=fix)
    made = Request(verb, tuple(words))
    made.check()
    return made


def refusal(error: EdgertError) -> dict[str, Any]:
    """Return the answer to a request that was refused."""
    return {"ok": False, "error": error.to_json()}


def result_of(answer: Any) -> Any:
    """Return the result in an answer. Raises what was refused, or ConfigError for what is no answer."""
    try:
        if answer["ok"] is True:
            return answer["result"]
        error = error_of(answer["error"])
    except (TypeError, KeyError, AttributeError):
        error = ConfigError("the pipeline does not answer like one of edgert")
    raise error
