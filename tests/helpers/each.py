"""Many small cases of one test, for which a test each would take longer to set up than to run."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every case, with the arguments of ``pytest.mark.parametrize``; all cases share its fixtures."""
    keys, listed = (names,) if isinstance(names, str) else names, list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def for_all(**fixtures: Any) -> None:
            assert listed
            for case in listed:
                named = dict(zip(keys, case if len(keys) > 1 else (case,), strict=True))
                try:
                    test(**named, **fixtures)
                except BaseException:
                    print("failed for", named)
                    raise

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in keys]
        setattr(for_all, "__signature__", signature.replace(parameters=kept))  # noqa: B010 - mypy knows no such name
        return for_all

    return decorate
