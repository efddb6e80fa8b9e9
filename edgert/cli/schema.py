"""``edgert schema``."""

from __future__ import annotations

import typer


def schema() -> None:
    """Print the JSON Schema of the pipeline file, for editors.

    They complete and check YAML with it.

    Example:

        edgert schema > edgert.schema.json

    and as the first line of a pipeline:

        # yaml-language-server: $schema=edgert.schema.json
    """
    import json

    from edgert.config import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
