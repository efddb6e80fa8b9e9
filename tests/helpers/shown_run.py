"""A control socket that shows a state, as that of a run does."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from edgert.control.control_socket import ControlSocket


@contextmanager
def shown_run(state: Callable[[], Mapping[str, object]], name: str = "shown") -> Iterator[Path]:
    """Answer ``show`` with a state, until the block ends; gives the path of the socket."""
    own = ControlSocket(name, lambda request, who: dict(state()))
    yield own.open()
    own.close()
