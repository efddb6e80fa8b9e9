"""Command ``tools/board-in-a-box``: makes a box per Jetson, and runs edgert from clone to results in each."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from edgert.errors import EXIT_ERROR, EXIT_OK, EdgertError
from tools.box import identity, jetpack, system, ubuntu, walk
from tools.box.box import HOME, Box, Done

NAMES = (*identity.IDENTITIES, *ubuntu.UBUNTUS)
"""Of all boxes."""


def main(arguments: Sequence[str]) -> int:
    asked = options(arguments)
    folder = Path(os.environ.get("EDGERT_BOX") or Path.home() / ".cache/edgert/box").absolute()
    started = time.monotonic()

    def note(text: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {text}", flush=True)

    try:
        gone: dict[str, list[Done]] = {}
        for name in asked.boards or NAMES:
            native = ubuntu.UBUNTUS.get(name)
            wanted = native.distribution if native else system.DEBIAN
            system.check(folder, emulated=native is None)
            if native is None:
                note(f"emulator: {system.emulator()}")
            note(f"{wanted.title} from {wanted.archive or system.mirror()}, some minutes the first time ...")
            base, how = system.base(folder, wanted)
            note(f"{base}: {how}")
            wheels, how = system.wheels(folder, wanted)
            note(f"{wheels}: {how}")
            box = Box(folder / name, base, wheels)
            prepare(name, box, fresh=asked.fresh)
            note(f"{name}: {box.folder}")
            if asked.shell:
                with box.alone():
                    return subprocess.run(
                        box.command(["sh", "-c", f"cd {HOME}; {asked.shell}"]), check=False
                    ).returncode
            way = ubuntu.steps(native) if native else walk.steps(identity.IDENTITIES[name])
            gone[name] = walk.walk(way, box)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return EXIT_ERROR
    except EdgertError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    if asked.log:
        asked.log.write_text(walk.log(gone))
        note(f"the log: {asked.log}")
    wrong = [f"{name}: {step.title}: {step.wrong}" for name, steps in gone.items() for step in steps if step.wrong]
    note("\n".join(wrong) or f"all went as it must in {', '.join(gone)}")
    return EXIT_ERROR if wrong else EXIT_OK


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("tools/board-in-a-box", description=__doc__)
    parser.add_argument("boards", nargs="*", metavar="BOX", help=f"{', '.join(NAMES)}; all when left out")
    parser.add_argument("--shell", metavar="COMMAND", help="run only this in the box, such as bash")
    parser.add_argument("--fresh", action="store_true", help="begin with an empty box; otherwise what was done is kept")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write what was typed and printed")
    asked = parser.parse_args(arguments)
    for name in asked.boards:
        if name not in NAMES:
            parser.error(f"no box for {name!r}: there are {', '.join(NAMES)}")
    return asked


def prepare(name: str, box: Box, *, fresh: bool) -> None:
    """Make a box with a clone of the current commit, unless it exists."""
    installed = ("edgert", "dla", "pipelines", "configs", "pyproject.toml")
    scripts = ("scripts/demo", "scripts/setup", "scripts/setup-jetson")
    trees = subprocess.run(
        ["git", "-C", str(system.ROOT), "rev-parse", *(f"HEAD:{path}" for path in (*installed, *scripts))],
        check=True,
        capture_output=True,
    ).stdout
    here = Path(__file__).parent
    helpers = [path for path in sorted((system.ROOT / "tests/helpers").iterdir()) if path.suffix in (".c", ".h")]
    helpers += [system.ROOT / f"tests/helpers/{name}.py" for name in ("cuda_double", "sysfs", "trt_api", "trt_double")]
    own = ("ubuntu.py", "boot.sh") if name in ubuntu.UBUNTUS else ("identity.py",)
    parts = [*(here / part for part in (*own, "jetpack.py")), *sorted((here / "double").iterdir()), *helpers]
    key = hashlib.sha256(b"".join([trees, *(part.read_bytes() for part in parts if part.is_file())])).hexdigest()
    marker = box.folder / "of"
    if not fresh and marker.exists() and marker.read_text() == key:
        return
    if box.folder.exists():
        with box.alone():
            shutil.rmtree(box.folder)
    if name in ubuntu.UBUNTUS:
        ubuntu.fill(ubuntu.UBUNTUS[name], box)
    else:
        one = identity.IDENTITIES[name]
        identity.write(one, box.upper)
        jetpack.packages(one, box.upper / "root/flashed", box.base)
    clone = box.upper / HOME.strip("/")
    clone.parent.mkdir(parents=True, exist_ok=True)
    system.run(["git", "clone", "--quiet", "--no-hardlinks", str(system.ROOT), str(clone)], "edgert cannot be cloned")
    marker.write_text(key)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
