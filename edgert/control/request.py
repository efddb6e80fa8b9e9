"""A request to a running pipeline and its answer, as lines of JSON; and the table of all verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgert.errors import ConfigError, EdgertError, cause, error_of, nearest
from edgert.runtime.json_form import plain
from edgert.units import parse_fraction, parse_seconds, parse_whole


@dataclass(frozen=True, slots=True)
class Verb:
    """The form of an operation.

    Attributes:
        words: what follows it, by names for people; optional ones in brackets. ``FILE`` is a text, which ``edgert ctl``
            reads from a file; ``PATH`` names a file on the machine of the run.
        options: name without dashes → what makes a value of its text, and raises ValueError for a wrong one.
        is_reading: whether it changes nothing: it is answered while a change is under way, and is not logged.
        is_long: whether it changes nothing, and takes long.
    """

    words: str = ""
    options: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    is_reading: bool = False
    is_long: bool = False

    @property
    def usage(self) -> str:
        """Its words and options, as on a command line."""
        return " ".join([*self.words.split(), *(f"[--{name} {name.upper()}]" for name in self.options)])


VERBS = {
    "show": Verb(is_reading=True),
    "set": Verb("KEY=VALUE"),
    "pause": Verb("SOURCE"),
    "resume": Verb("SOURCE"),
    "add": Verb("STAGE URL [LIKE]"),
    "remove": Verb("SOURCE"),
    "apply": Verb("FILE", {"plan": str}),
    "save": Verb(),
    "swap": Verb("MODEL PATH", {"shadow": parse_whole, "min-agreement": parse_fraction, "keep": parse_seconds}),
    "back": Verb("MODEL"),
    "trace": Verb("[SECONDS]", is_long=True),
}


@dataclass(frozen=True, slots=True)
class Request:
    """One operation.

    Attributes:
        verb: of :data:`VERBS`.
        words: what follows it on a command line.
        options: those given, as text.
    """

    verb: str
    words: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, verb: str, tokens: Iterable[str]) -> Request:
        """Return the request of a command line, checked; ``--name VALUE`` and ``--name=VALUE`` are its options.

        Raises:
            ConfigError: as :meth:`values` does, or an option has no value.
        """
        words, options, rest = [], dict[str, str](), iter(tokens)
        for token in rest:
            name, equals, value = token.partition("=")
            if not name.startswith("--"):
                words.append(token)
                continue
            if not equals and (value := next(rest, "--")).startswith("--"):
                raise ConfigError(f"{name} has no value", fix=f"edgert ctl {verb} … {name} VALUE")
            options[name[2:]] = value
        request = cls(verb, tuple(words), options)
        request.values()
        return request

    def values(self) -> dict[str, Any]:
        """Return the value of each option that is given, under its name in Python.

        Raises:
            ConfigError: an unknown verb or option, a wrong value, a wrong number of words, or one that is no text.
        """
        if (verb := VERBS.get(self.verb)) is None:
            what = f"{self.verb!r} is no verb of edgert ctl{nearest(self.verb, VERBS)}"
            raise ConfigError(what, fix=f"one of {', '.join(VERBS)}")
        fix, wanted = f"edgert ctl {self.verb} {verb.usage}".rstrip(), verb.words.split()
        least = sum(not word.startswith("[") for word in wanted)
        if not least <= len(self.words) <= len(wanted):
            what = f"{self.verb} takes {least or 'no'} word{'s' * (least != 1)}, not {len(self.words)}"
            raise ConfigError(what, fix=fix)
        for word, kind in zip(self.words, wanted, strict=False):
            try:  # the names of files may have bytes that are no UTF-8
                word.encode(errors="strict" if kind == "FILE" else "surrogateescape")
            except UnicodeEncodeError as error:
                why = f"character {error.start} of {kind.strip('[]')} is half of a pair, as a \\ud800 of JSON"
                raise ConfigError(f"{self.verb} takes text", why=why, fix=fix) from error
        made = {}
        for name, text in self.options.items():
            if name not in verb.options:
                raise ConfigError(f"{self.verb} has no option --{name}{nearest(name, verb.options)}", fix=fix)
            try:
                made[name.replace("-", "_")] = verb.options[name](text)
            except ValueError as error:
                raise ConfigError(f"--{name}: cannot use {text!r}", why=str(error), fix=fix) from error
        return made

    def with_texts(self) -> Request:
        """Return the request with the text of each ``FILE`` in place of its path. Raises ConfigError."""
        kinds = VERBS[self.verb].words.split()
        words = (text_at(Path(word)) if kind == "FILE" else word for word, kind in zip(self.words, kinds, strict=False))
        return replace(self, words=tuple(words))

    def line(self) -> bytes:
        """Return the request as a line of JSON."""
        return line_of({"verb": self.verb, "words": list(self.words), "options": dict(self.options)})


def text_at(path: Path) -> str:
    """Return the text of a ``FILE``. Raises ConfigError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}", why=cause(error), fix="name a YAML file") from error


def line_of(data: Mapping[str, Any]) -> bytes:
    """Return a mapping as a line of JSON."""
    return json.dumps(plain(data), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def request_of(line: bytes) -> Request:
    """Return the request in a line of JSON, checked. Raises ConfigError."""
    try:
        data = json.loads(line)
        verb, words, options = data["verb"], data.get("words", []), data.get("options", {})
        texts = [verb, *words, *options, *options.values()]
        is_one = isinstance(words, list) and all(isinstance(text, str) for text in texts)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        is_one = False
    if not is_one:
        fix = 'a line like {"verb": "set", "words": ["stages.find.every=2"]}'
        raise ConfigError("this line is no request", why="it is no JSON object with a verb and words", fix=fix)
    made = Request(verb, tuple(words), options)
    made.values()
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
