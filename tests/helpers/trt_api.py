"""The names that each version of TensorRT's Python binding has: ``tests/data/trt_api``, by tools/trt_api.py."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "data" / "trt_api"
WEAK, STRONG, RTX = ("8.6", "10.3", "10.7", "10.13"), ("11.4",), ("rtx-1.4", "rtx-1.7")
EVERY = (*WEAK, *STRONG, *RTX)
_LINE = re.compile(r"(?P<enum>enum )?(?P<name>\w+)(?:\((?P<base>\w+)\))?: ?(?P<members>.*)")


@dataclass(frozen=True)
class Class:
    """A class of the binding; ``methods`` maps names to the class they return, or an empty name."""

    name: str
    properties: frozenset[str]
    methods: dict[str, str]

    def __contains__(self, member: str) -> bool:
        return member in self.properties or member in self.methods


@dataclass(frozen=True)
class Api:
    module: str
    version: str
    classes: dict[str, Class]
    enums: dict[str, tuple[str, ...]]
    others: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.classes or name in self.enums or name in self.others


@cache
def api(version: str) -> Api:
    title, *lines = (FOLDER / f"{version}.txt").read_text().splitlines()
    module, number = title.split()
    rows = [match for line in lines if (match := _LINE.fullmatch(line))]
    enums = {row["name"]: tuple(row["members"].split()) for row in rows if row["enum"]}
    own = {row["name"]: (row["base"], row["members"].split()) for row in rows if not row["enum"]}
    others = frozenset(line.split()[1] for line in lines if line.startswith(("def ", "value ")))
    return Api(module, number, {name: _class(name, own) for name in own}, enums, others)


def _class(name: str, own: dict[str, tuple[str | None, list[str]]]) -> Class:
    members: list[str] = []
    at: str | None = name
    while at in own:
        at, more = own[at]
        members += more
    split = [member.partition("()") for member in members]
    methods = {word: rest.removeprefix(">") for word, call, rest in split if call}
    return Class(name, frozenset(word for word, call, _ in split if not call), methods)
