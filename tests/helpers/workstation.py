"""The other side of :mod:`tests.helpers.sshd`: builds on that board, as they go on."""

import threading
from collections.abc import Callable
from pathlib import Path

from edgert.bundle.bundle import save_bundle
from edgert.errors import EdgertError
from edgert.remote.remote_build import RemoteBuilt, build_remote
from edgert.reporter import Progress, Reporter
from tests.helpers.bundles import MEMBERS, manifest_of
from tests.helpers.sshd import Board
from tests.helpers.waiting import wait_until


def bundle_for_any(path: Path, members: dict[str, bytes] | None = None) -> Path:
    content = {**MEMBERS, **(members or {})}
    save_bundle(path, manifest_of(content, board="host", mode="", tensorrt="", engines=["onnxruntime"]), content)
    return path


class RemoteBuild:
    """One build on a board, in a thread of its own."""

    def __init__(
        self,
        there: Board,
        bundle: Path,
        output: Path,
        program: str = "",
        on_progress: Callable[[Progress], object] = bool,
        strict: bool = False,
    ) -> None:
        self.events: list[Progress] = []
        self._stop = threading.Event()
        self._built: RemoteBuilt | None = None
        self._error: EdgertError | None = None
        self._on_event = on_progress
        self._words, self._strict = (bundle, output, program or there.program), strict
        self._thread = threading.Thread(target=self._build)
        self._thread.start()

    def _build(self) -> None:
        bundle, output, program = self._words
        try:
            self._built = build_remote(
                bundle,
                output,
                "board",
                program=program,
                strict=self._strict,
                on_progress=Reporter(self._tell, self._stop),
            )
        except EdgertError as error:
            self._error = error

    def _tell(self, event: Progress) -> None:
        self.events.append(event)
        self._on_event(event)

    def stop(self) -> None:
        self._stop.set()

    def result(self) -> RemoteBuilt:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._built is not None
        return self._built

    def details(self, step: str) -> list[str]:
        return [event.detail for event in self.events if event.step == step]

    def wait_for(self, step: str, times: int = 1) -> None:
        wait_until(lambda: len(self.details(step)) >= times or not self._thread.is_alive())
        assert len(self.details(step)) >= times, (self._error, self.events)
