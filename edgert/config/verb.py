"""A stage or task is known by its one verb: the key that says what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgert.errors import nearest


def keys_of(data: Any) -> list[str]:
    """Keys of a mapping as read from YAML, or of a record already made from one."""
    return [str(key) for key in data] if isinstance(data, dict) else list(getattr(type(data), "model_fields", ()))


def verb_tag(data: Any, verbs: Sequence[str], first: Sequence[str] = ()) -> str | None:
    """``<verb>`` of the single verb among the keys, for pydantic's tagged unions; None when there is not one.

    Args:
        first: verbs that win over others, because their stages take an option of another verb's name.
    """
    found = [key for key in keys_of(data) if key in verbs]
    winners = [key for key in found if key in first] or found
    return f"<{winners[0]}>" if len(winners) == 1 else None


def explain_no_verb(data: Any, verbs: Sequence[str]) -> str:
    """Why :func:`verb_tag` found none."""
    if not isinstance(data, dict):
        return f"expected a mapping with one of {', '.join(verbs)}; got {data!r}"
    found = [key for key in keys_of(data) if key in verbs]
    if len(found) > 1:
        return f"has {len(found)} verbs, {' and '.join(found)}; it can do only one thing"
    hint = next((near for key in keys_of(data) if (near := nearest(key, verbs))), "")
    return f"does nothing: no verb among its keys{hint}"
