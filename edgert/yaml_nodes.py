"""YAML text → nodes that know their lines, with a bound on how deeply they are nested."""

from collections.abc import Iterator
from typing import Any

import yaml

from edgert import limits

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def compose(text: str) -> yaml.Node | None:
    """The node of a text; None of one that holds nothing.

    Raises:
        yaml.MarkedYAMLError: it is not YAML, or nested too deeply.
    """
    depth = 0
    # LibYAML makes nodes recursively and would overflow the C stack; it makes events one by one.
    for event in _events(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > limits.YAML_LEVELS:
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=event.start_mark)
    return yaml.compose(text, Loader=LOADER)


def _events(text: str) -> Iterator[Any]:
    """The events of a text; a newer LibYAML looks ahead for the end of a list and has a bound of its own (1,000)."""
    try:
        yield from yaml.parse(text, Loader=LOADER)
    except yaml.MarkedYAMLError as error:
        if error.problem == "exceeded maximum nesting depth":
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=error.problem_mark) from error
        raise


TOO_DEEP = f"nested too deeply: {limits.YAML_LEVELS} levels are the most"
