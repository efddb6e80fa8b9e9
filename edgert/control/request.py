"""Requests to a running pipeline and their answers, as lines of JSON; and the table of all verbs."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgert.errors import ConfigError, EdgertError, StageError, error_of, nearest, raised_as
from edgert.runtime.json_form import plain
from edgert.units import parse_fraction, parse_seconds, parse_whole

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verb:
    """The form of an operation.

    ``words`` names the words that follow the verb, optional ones in brackets; any number of the last one where it ends
    with ``...``. ``FILE`` is a text, which ``edgert ctl`` reads from a file; ``PATH`` is a path on the machine of the
    run. ``options`` maps names to functions that parse values, and raise ValueError. A reading verb is answered during
    a change, and not logged; a long one changes nothing and takes long.
    """

    words: str = ""
    options: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    is_reading: bool = False
    is_long: bool = False

    @property
    def usage(self) -> str:
        """Words and options as on a command line."""
        return " ".join([*self.words.split(), *(f"[--{name} {name.upper()}]" for name in self.options)])

    def with_names(self, words: Sequence[str]) -> list[tuple[str, str]]:
        """Return each word of a request with its name, without brackets and ``...``."""
        names = self.words.split()
        names += names[-1:] * (len(words) - len(names)) if self.words.endswith("...") else []
        return [(word, name.strip("[].")) for word, name in zip(words, names, strict=False)]


VERBS = {
    "show": Verb(is_reading=True),
    "set": Verb("KEY=VALUE..."),
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
    """A request for an operation: its verb, the words that follow, and the texts of the given options by name."""

    verb: str
    words: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, verb: str, tokens: Iterable[str]) -> "Request":
        """Parse and check a command line with options ``--name VALUE`` and ``--name=VALUE``. Raises ConfigError."""
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
        """Return name of the keyword in Python → value, for each given option.

        Raises ConfigError for an unknown verb or option, a wrong value or number of words, or a word that is not text.
        """
        if (verb := VERBS.get(self.verb)) is None:
            what = f"edgert ctl has no verb {self.verb!r}{nearest(self.verb, VERBS)}"
            raise ConfigError(what, fix=f"one of {', '.join(VERBS)}")
        fix, wanted = f"edgert ctl {self.verb} {verb.usage}".rstrip(), verb.words.split()
        least = sum(not word.startswith("[") for word in wanted)
        if not least <= len(self.words) or len(self.words) > len(verb.with_names(self.words)):
            what = f"{self.verb} takes {least or 'no'} word{'s' * (least != 1)}, not {len(self.words)}"
            raise ConfigError(what, fix=fix)
        for word, kind in verb.with_names(self.words):
            try:  # the names of files may have bytes that are no UTF-8
                word.encode(errors="strict" if kind == "FILE" else "surrogateescape")
            except UnicodeEncodeError as error:
                why = f"character {error.start} of {kind} is half of a pair, as a \\ud800 of JSON"
                raise ConfigError(f"{self.verb} takes text", why=why, fix=fix) from error
        made = {}
        for name, text in self.options.items():
            if name not in verb.options:
                raise ConfigError(f"{self.verb} has no option --{name}{nearest(name, verb.options)}", fix=fix)
            with raised_as(ConfigError, f"--{name}: cannot use {text!r}", of=ValueError, fix=fix):
                made[name.replace("-", "_")] = verb.options[name](text)
        return made

    def with_texts(self) -> "Request":
        """Return the request with the path of each ``FILE`` replaced by its text. Raises ConfigError."""
        named = VERBS[self.verb].with_names(self.words)
        words = (read_file(Path(word)) if kind == "FILE" else word for word, kind in named)
        return replace(self, words=tuple(words))

    def line(self) -> bytes:
        """Return the request as a line of JSON."""
        return to_line({"verb": self.verb, "words": list(self.words), "options": dict(self.options)})


def read_file(path: Path) -> str:
    """Return the text of a file. Raises ConfigError: it cannot be read."""
    with raised_as(ConfigError, f"cannot read {path}", of=(OSError, UnicodeDecodeError), fix="check the path"):
        return path.read_text(encoding="utf-8")


def to_line(data: Mapping[str, Any]) -> bytes:
    """Return a mapping as a line of JSON."""
    return json.dumps(plain(data), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def parse_request(line: bytes) -> Request:
    """Parse and check a request in a line of JSON. Raises ConfigError: it is not a valid request."""
    try:
        data = json.loads(line)
        verb, words, options = data["verb"], data.get("words", []), data.get("options", {})
        texts = [verb, *words, *options, *options.values()]
        is_one = isinstance(words, list) and all(isinstance(text, str) for text in texts)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        is_one = False
    if not is_one:
        fix = 'a line like {"verb": "set", "words": ["stages.find.every=2"]}'
        raise ConfigError("this line is not a request", why="it is not a JSON object with a verb and words", fix=fix)
    made = Request(verb, tuple(words), options)
    made.values()
    return made


def answer_to(perform: Callable[[], Any]) -> bytes:
    """Return the answer to a request as a line of JSON: what ``perform`` returns, or the error that it raises."""
    try:
        return to_line({"ok": True, "result": perform()})
    except EdgertError as error:
        return refusal(error)
    except Exception:  # noqa: BLE001 - an error in one answer must not end a server
        _LOG.exception("a request failed")
        return refusal(StageError("the request failed", why="a bug in edgert; its log has the traceback"))


def refusal(error: EdgertError) -> bytes:
    """Return the answer to a request that failed with this error, as a line of JSON."""
    return to_line({"ok": False, "error": error.to_json()})


def get_result(answer: Any) -> Any:
    """Return the result in an answer. Raises the error in it, or ConfigError: it is not an answer of edgert."""
    try:
        if answer["ok"] is True:
            return answer["result"]
        error = error_of(answer["error"])
    except (TypeError, KeyError, AttributeError):
        error = ConfigError("the pipeline does not answer like one of edgert")
    raise error
