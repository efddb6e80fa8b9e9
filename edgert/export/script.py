"""``build.sh``: one trtexec command per engine, quoted for any shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from edgert import __version__
from edgert.export.trtexec import Command

_HEAD = """\
#!/bin/sh
# Builds {engines} with trtexec of TensorRT {tensorrt}. Written by edgert {version}.
# Another release may read these options otherwise, or not at all.
{unsaid}set -eu
cd "$(dirname "$0")"
trtexec=${{TRTEXEC:-$(command -v trtexec || echo /usr/src/tensorrt/bin/trtexec)}}
"""


def script(commands: Sequence[Command], tensorrt: str, unsaid: Sequence[str]) -> str:
    """The script's text.

    Args:
        commands: one per engine.
        tensorrt: the release they are for.
        unsaid: what none of them says, in words.
    """
    engines = "one engine" if len(commands) == 1 else f"{len(commands)} engines"
    head = _HEAD.format(engines=engines, tensorrt=tensorrt, version=__version__, unsaid="".join(_comments(unsaid)))
    return "\n".join([head, *map(_call, commands)])


def _comments(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield "#\n# Not said below, because trtexec has no words for it:\n"
    for line in lines:
        yield f"#   - {' '.join(line.split())}\n"


def _call(command: Command) -> str:
    options = " \\\n  ".join(map(shlex.quote, command.options))
    return f'"$trtexec" \\\n  {options}\n'
