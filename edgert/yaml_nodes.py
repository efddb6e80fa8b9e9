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
    events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > limits.YAML_LEVELS:
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=event.start_mark)
    return yaml.compose(text, Loader=LOADER)


TOO_DEEP = f"nested too deeply: {limits.YAML_LEVELS} levels are the most"
