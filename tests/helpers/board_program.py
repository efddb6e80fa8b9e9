"""``edgert`` on the board of the tests: itself, but for a compiler that does what the test wants.

Called by the script that :mod:`tests.helpers.sshd` writes. What the compiler does stands in ``compiler.json`` beside
it; every compilation adds a line to ``compiled``, and
is not done again. Imports wait until they are needed, as in edgert itself.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ENGINE = "engines/host/parts.plan"


@dataclass(frozen=True)
class Compiler:
    """What the compiler is to do; ``ends`` is ``well``, with an ``error``, by a ``crash``, or in a ``full`` disk."""

    steps: int = 3
    waits: bool = False
    ends: str = "well"
    engine_bytes: int = 1000

    def save(self, folder: Path) -> None:
        (folder / "compiler.json").write_text(json.dumps(asdict(self)))


def main(folder: Path) -> None:
    if sys.argv[1] == "build" and (folder / "compiler.json").exists():
        compile_bundle(folder, Path(sys.argv[2]), Path(sys.argv[4]))
    elif sys.argv[1] == "doctor" and (folder / "compiler.json").exists():
        tell_doctor(folder)
    else:
        from edgert.cli import main as edgert

        edgert()


def tell_doctor(folder: Path) -> None:
    """The machine as it is, without the look at every package, which takes seconds."""
    from edgert.diagnosis.probe import facts

    changes = folder / "doctor.json"
    machine = {**facts(), **(json.loads(changes.read_text()) if changes.exists() else {})}
    finding = {"name": "TensorRT", "state": "optional", "detail": "not installed", "fix": "sudo apt install it"}
    print("Welcome to the board")  # as a login shell may
    print(json.dumps({"ok": True, "machine": machine, "findings": [finding]}, indent=2))


def compile_bundle(folder: Path, before: Path, after: Path) -> None:
    compiler = Compiler(**json.loads((folder / "compiler.json").read_text()))
    own = "the tests' own, strictly" if "--strict" in sys.argv else "the tests' own"
    cached = folder / f"cached {own}"
    if not cached.exists():
        compile_engine(folder, compiler)
        cached.touch()
    add_engine(before, after, compiler.engine_bytes)
    tell({"bundle": str(after), "engines": {"parts": own}})


def compile_engine(folder: Path, compiler: Compiler) -> None:
    with (folder / "compiled").open("a") as file:
        file.write(f"{os.getpid()}\n")
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    for number in range(compiler.steps):
        tell({"step": f"kernel{number}", "model": "parts", "state": "done", "seconds": 0.1, "detail": "fine"})
    while compiler.waits and not (folder / "go").exists() and not asked:
        time.sleep(0.02)
    if asked:
        sys.exit(1)
    if compiler.ends == "error":
        from edgert.errors import BuildError

        error = BuildError("node 'Conv_7' cannot be compiled", why="no kernel", where="parts", fix="use another")
        tell({"error": error.to_json()})
        sys.exit(1)
    if compiler.ends == "crash":
        print("the last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


def add_engine(before: Path, after: Path, size_bytes: int) -> None:
    from edgert.bundle.bundle import open_bundle, save_bundle
    from edgert.zip_archive import member_of

    with open_bundle(before) as bundle:
        members = {name: bundle.read(name) for name in bundle.manifest.members}
        members[ENGINE] = b"engine".ljust(size_bytes, b".")
        listed = {name: member_of(content) for name, content in members.items()}
        save_bundle(after, bundle.manifest.model_copy(update={"members": listed}), members)


def tell(content: object) -> None:
    print(json.dumps(content), flush=True)
