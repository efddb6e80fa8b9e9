"""The sections ``input:`` and ``task:`` on one line, for the command line.

letterbox top_left bgr mean=103.5,116.3,123.7 std=57.4,57.1,58.4 size=416x416
detect yolox score=0.3 labels=coco.txt
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from edgert.config.fields import expected
from edgert.config.model_section import TASK_VERBS, DetectTask, InputConfig, TaskConfig
from edgert.errors import ConfigError, nearest

_T = TypeVar("_T")
_USUAL = {"classify": "auto", "segment": "argmax", "embed": "l2"}
_KEYS = tuple(key for key in InputConfig.model_fields if key != "shape")  # ranges of sizes are for the pipeline file


def parse_input(text: str, where: str = "--input") -> InputConfig:
    """``"letterbox rgb mean=0 std=255"`` → the section ``input:``.

    Words are values of the keys that have a few (``letterbox`` is ``resize: letterbox``); other keys are written
    ``key=value``, with commas between several numbers.

    Raises:
        ConfigError: names the word or key that cannot be used and the nearest that can.
    """
    words = _words()
    found: dict[str, Any] = {}
    for token in text.split():
        key, equals, value = token.partition("=")
        if not equals:
            if token not in words:
                raise _unknown(token, [*words, *(f"{key}=" for key in _KEYS)], where)
            key, value = words[token], token
        elif key not in _KEYS:
            raise _unknown(key, _KEYS, where)
        _set(found, key, _numbers(value) if equals else value, token, where)
    return _checked(TypeAdapter(InputConfig), found, text, where)


def parse_task(text: str, where: str = "--task") -> TaskConfig:
    """``"detect yolox score=0.3"`` → the section ``task:``. A detector's own options are written like its keys.

    Raises:
        ConfigError: names what cannot be used and the nearest that can.
    """
    verb, *rest = text.split() or [""]
    if verb not in TASK_VERBS:
        what = f"{verb!r} is no task{nearest(verb, TASK_VERBS)}"
        raise ConfigError(what, where=where, fix=f"one of {', '.join(TASK_VERBS)}")
    kind = rest.pop(0) if rest and "=" not in rest[0] else _USUAL.get(verb)
    if kind is None:
        fix = "write like 'detect yolox', 'classify auto', 'segment argmax', 'embed l2'"
        raise ConfigError(f"{verb} what?", where=where, fix=fix)
    found: dict[str, Any] = {verb: kind}
    options: dict[str, Any] = {}
    for token in rest:
        key, equals, value = token.partition("=")
        if not equals:
            raise ConfigError(f"cannot understand {token!r}", why="after the task come key=value", where=where)
        own = verb == "detect" and key not in DetectTask.model_fields
        _set(options if own else found, key, value if key == "labels" else _numbers(value), token, where)
    if options:
        found["options"] = options
    task: TaskConfig = _checked(TypeAdapter(TaskConfig), found, text, where)
    return task


def input_words(config: InputConfig) -> str:
    """The section ``input:`` as :func:`parse_input` reads it, but for ``shape:``, which has no short form."""
    usual = {key for key in ("crop", "layout") if getattr(config, key) == InputConfig.model_fields[key].default}
    fields = config.model_dump(exclude={"shape", *usual}, exclude_none=True)
    words = _words()
    return " ".join(str(value) if words.get(value) == key else setting(key, value) for key, value in fields.items())


def task_words(task: TaskConfig) -> str:
    """The section ``task:`` as :func:`parse_task` reads it, but for its labels."""
    fields = task.model_dump(exclude={"labels"}, exclude_none=True)
    verb = next(key for key in fields if key in TASK_VERBS)
    options = {**fields.pop("options", {}), **fields.pop("args", {})}
    kind = fields.pop(verb)
    return " ".join([verb, str(kind), *(setting(key, value) for key, value in {**fields, **options}.items())])


def setting(key: str, value: object) -> str:
    """``mean=103.5,116.3,123.7``: a key and its value as they are written on a command line."""
    if key == "size" and isinstance(value, tuple):
        return f"size={value[0]}x{value[1]}"
    texts = [
        f"{one:g}" if isinstance(one, float) else str(one).lower() if isinstance(one, bool) else str(one)
        for one in (value if isinstance(value, (list, tuple)) else [value])
    ]
    return f"{key}={','.join(texts)}"


def _words() -> Mapping[str, str]:
    """Word → the key of ``input:`` that has it among its few values."""
    fields = {key: field.annotation for key, field in InputConfig.model_fields.items()}
    return {value: key for key, kind in fields.items() if get_origin(kind) is Literal for value in get_args(kind)}


def _set(found: dict[str, Any], key: str, value: Any, token: str, where: str) -> None:
    if key in found:
        raise ConfigError(f"{token!r} sets {key} a second time", why=f"it is {found[key]!r} already", where=where)
    found[key] = value


def _numbers(text: str) -> Any:
    """Numbers where they are some, a list of them where there are commas; otherwise the text."""
    if "," in text:
        return [_numbers(part) for part in text.split(",")]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _unknown(word: str, known: Iterable[str], where: str) -> ConfigError:
    some = list(known)
    return ConfigError(f"cannot understand {word!r}{nearest(word, some)}", where=where, fix=f"known: {', '.join(some)}")


def _checked(kind: TypeAdapter[_T], data: Mapping[str, Any], text: str, where: str) -> _T:
    try:
        return kind.validate_python(dict(data), context={"directory": Path()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    loc = [str(part) for part in first["loc"] if not str(part).startswith("<")]
    context = first.get("ctx", {})
    key = loc[0] if loc else str(context.get("key", ""))
    written = [token for token in text.split() if token.partition("=")[0] == key]
    named = " ".join(text.split()[:2]) if key in TASK_VERBS else written[0] if written else text
    raise ConfigError(f"cannot use {named!r}: {expected(first)}", where=where)
