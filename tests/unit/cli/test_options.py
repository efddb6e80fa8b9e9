"""An option name has one meaning over all verbs, and a help that a newcomer understands."""

from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import typer
from typer.testing import CliRunner

from edgert.cli import app
from tests.helpers.command import in_process
from tests.helpers.each import each

GROUP: Any = typer.main.get_command(app)
LEAST_WORDS = 4
EXIT_USAGE = 2


def parameters() -> list[tuple[str, Any]]:
    """Every visible argument and option with its verb."""
    shown = [(name, one) for name, verb in GROUP.commands.items() if not verb.hidden for one in verb.params]
    return [(verb, one) for verb, one in shown if not one.hidden and "--help" not in one.opts]


def options() -> dict[str, dict[str, Any]]:
    """Option → verb → parameter."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for verb, one in parameters():
        for name in one.opts:
            if name.startswith("-"):
                found[name][verb] = one
    return found


def kind(one: Any) -> object:
    """What one value is read as."""
    read_as = one.type_descriptor.annotation
    return get_args(read_as)[0] if one.multiple else read_as


def metavar(one: Any) -> object:
    return one.metavar


def spellings(one: Any) -> list[str]:
    return sorted(one.opts)


def first_sentence(one: Any) -> str:
    return str(one.help).partition(". ")[0].rstrip(".")


WITH_A_FILE = ("replay", "--model")
"""Others take a model's name; this takes the file that replaces it, too: NAME=FILE."""


@each("name", sorted(options()))
def test_a_name_means_one_thing(name: str) -> None:
    every = [one for verb, one in options()[name].items() if (verb, name) != WITH_A_FILE]
    for of in (kind, metavar, spellings, first_sentence):
        assert len({str(of(one)) for one in every}) == 1, name


@each(("verb", "one"), parameters())
def test_a_help_is_a_sentence(verb: str, one: Any) -> None:
    assert one.help and one.help[0].isupper() and one.help.endswith("."), one.help
    assert len(first_sentence(one).split()) >= LEAST_WORDS, one.help


@each("name", sorted(options()))
def test_what_repeats_says_so(name: str) -> None:
    for one in options()[name].values():
        assert one.multiple is ("Repeatable." in one.help), one.help


@each(("verb", "one"), parameters())
def test_a_value_has_a_name(verb: str, one: Any) -> None:
    is_option = one.opts[0].startswith("-")
    assert one.metavar or (is_option and one.is_flag), f"{verb} {one.opts}"
    assert "<" not in (one.metavar or "")


def test_a_default_is_shown() -> None:
    text = GROUP.commands["simulate"].get_help(typer.Context(GROUP.commands["simulate"]))
    assert "[default: 60.0" in text


def test_every_verb_has_a_whole_line_of_help_on_a_narrow_terminal() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    verbs = text[text.index("Commands:") :].splitlines()[1 : len(GROUP.commands)]
    assert len(verbs) == len(GROUP.commands) - 1 and all(line.endswith(".") for line in verbs)
    assert "..." not in "".join(verbs)


NUMBERS = [(verb, one.opts[0]) for verb, one in parameters() if kind(one) in (int, float)]


@each("value", ["nan", "inf", "-inf", "1e300", "1" + "0" * 30, "1" + "0" * 5_000])
@each(("verb", "option"), NUMBERS)
def test_a_number_is_finite(verb: str, option: str, value: str) -> None:
    command = GROUP.commands[verb]
    needed = [one for one in command.params if one.required]
    arguments = [part for one in needed for part in (*one.opts[:1], "x")[not one.opts[0].startswith("-") :]]
    done = in_process(verb, *arguments, option, value, cwd=Path(), env={"COLUMNS": "200"})
    assert done.returncode == EXIT_USAGE and option in done.stderr, done
