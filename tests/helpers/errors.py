"""Errors that tests expect, and what each part of them says."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edgert.errors import EdgertError


class Exactly(str):
    """The whole text of a part."""


Part = str | bool | tuple[str, ...]
"""Text that a part contains, or several; ``Exactly`` is all of it. True: there is such a part, whatever it says."""


@contextmanager
def raises(
    kind: type[EdgertError],
    match: str = "",
    *,
    what: Part = (),
    why: Part = (),
    where: Part = (),
    fix: Part = (),
    says: Part = (),
) -> Iterator[pytest.ExceptionInfo[EdgertError]]:
    """Expect an error of edgert; ``match`` is a pattern in its whole message, ``says`` a text in it."""
    with pytest.raises(kind, match=match or None) as caught:
        yield caught
    error = caught.value
    known = ((error.what, what), (error.why, why), (error.where, where), (error.fix, fix), (str(error), says))
    for said, parts in known:
        for part in parts if isinstance(parts, tuple) else (parts,):
            right = said == part if isinstance(part, Exactly) else bool(said) if part is True else part in said
            assert right, f"{said!r} instead of {part!r}"
