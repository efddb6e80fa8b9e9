"""``edgert`` without a verb: what is here, and the next step."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgert.errors import DeviceError

_SHOWN = 4
_HEAD_BYTES = 1 << 18


def start_page(folder: Path) -> Iterator[str]:
    """Yield lines on this machine, its running pipelines and the files of a folder, and the command to go on with."""
    from edgert._version import __version__
    from edgert.board.detect import detect
    from edgert.control.client import running_pipelines

    machine = detect()
    where = machine.board.title if machine.board else machine.model or f"{machine.cpu}, {machine.cores} cores"
    yield f"edgert {__version__} on {where}"
    try:
        running = running_pipelines()
    except DeviceError:  # edgert ctl shows the reason
        running = ()
    for one in running[:_SHOWN]:
        name = Path(one.key).stem if isinstance(one.state, str) else one.state.get("pipeline", one.key)
        yield f"  runs here: {name}, process {one.pid}"
    files = pipelines_in(folder)
    models = sorted(file.name for file in folder.glob("*.onnx"))
    for what, names in (("pipelines", [file.name for file in files]), ("models", models)):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"  {what} in this folder: {', '.join(names[:_SHOWN])}{more}"
    if running:
        step = "edgert top", "watches what runs; edgert ctl show lists what can change"
    elif files:
        step = f"edgert run {files[0].name}", "runs it; edgert validate checks it first"
    elif models:
        step = f"edgert new {models[0]}", "writes a pipeline for this model"
    else:
        step = "edgert run hello", "runs a demo; edgert new MODEL.onnx begins with your own model"
    yield f"next: {step[0]:<28} {step[1]}"
    yield f"      {'edgert doctor':<28} says what is installed, and what is missing"
    yield f"      {'edgert --help':<28} lists all verbs"


def pipelines_in(folder: Path) -> list[Path]:
    """Return a folder's pipeline files sorted by name, without those of ``edgert ctl save`` and unreadable ones."""
    found = []
    for file in sorted(folder.glob("*.y*ml")):
        with suppress(OSError):
            if not file.name.endswith(".live.yaml") and file.is_file():  # reading a FIFO would wait for a writer
                with file.open(encoding="utf-8", errors="replace") as text:
                    if any(line.startswith("stages:") for line in text.read(_HEAD_BYTES).splitlines()):
                        found.append(file)
    return found
