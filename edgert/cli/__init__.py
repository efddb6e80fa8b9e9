"""The command line. A verb parses, calls one library function, and renders what it returned.

Nothing heavy is imported here: a verb imports what it needs when it runs, so ``edgert --help`` is quick.
"""

import errno
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from inspect import getdoc
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from edgert import errors, user_code
from edgert.cli.bench_command import bench
from edgert.cli.boards_command import boards, models
from edgert.cli.build_command import build, job
from edgert.cli.ctl_command import ctl
from edgert.cli.exchange_commands import export, import_model
from edgert.cli.file_commands import check, explain, new, schema, validate
from edgert.cli.gallery_command import gallery
from edgert.cli.inspect_command import inspect
from edgert.cli.int8_commands import calibrate, evaluate, quantize
from edgert.cli.machine_commands import doctor, top
from edgert.cli.option import Verb
from edgert.cli.plan_command import plan
from edgert.cli.progress import Interruption
from edgert.cli.replay_command import replay
from edgert.cli.run_command import run
from edgert.cli.simulate_command import simulate

_NO_CODE, _DEBUG = "--no-code", "--debug"
_NO_THREAD, _NO_TEMPORARY = "can't start new thread", "No usable temporary directory"
"""CPython's messages when no thread can start, or no temporary file; these errors have no types of their own."""
_announced: set[str] = set()

app = typer.Typer(
    name="edgert",
    help="Camera, ONNX model, output: one YAML file, on a Jetson or any other machine.",
    epilog="Start with: edgert run hello",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its help pages cost a third of a second of imports
    context_settings={"help_option_names": ["-h", "--help"]},
)
_VERBS: tuple[tuple[Callable[..., None], str], ...] = (
    (new, "Write a commented starter pipeline for a model."),
    (check, "Check whether a model is wired right, on your images."),
    (validate, "Check a pipeline file and everything it names."),
    (run, "Run a pipeline until its sources end, or Ctrl-C."),
    (ctl, "Show and change a running pipeline."),
    (top, "Watch this machine's pipelines, or the boards of a fleet."),
    (replay, "Run a recorded run again, and compare."),
    (plan, "Predict speed, watts and placement on a board."),
    (simulate, "Simulate a pipeline on a board, second by second."),
    (boards, "List the boards and their power modes."),
    (models, "List the families of models that are known to work."),
    (inspect, "Show what a model takes, returns and costs; its DLA layers."),
    (import_model, "Make an ONNX model of a PyTorch or TensorFlow one."),
    (calibrate, "Measure the ranges of a model's tensors, for INT8."),
    (quantize, "Make a model INT8, within an accuracy budget."),
    (evaluate, "Measure how good a model is on your images."),
    (bench, "Measure a model alone, or what edgert adds to it."),
    (build, "Pack a pipeline for a board into one file."),
    (export, "Export a build to Triton, ONNX, trtexec, or a fleet."),
    (gallery, "List, add and remove the names of a gallery."),
    (doctor, "Check what is installed, and how to get what is missing."),
    (explain, "Explain an error: its causes and cures."),
    (schema, "Print the JSON Schema of pipeline files and messages."),
)
"""Verbs in the order of a user's work, each with its line of ``edgert --help``."""
_NAMES = {import_model: "import", evaluate: "eval"}  # words that Python keeps for itself
for verb, line in _VERBS:
    context = {"ignore_unknown_options": verb is ctl}  # whose verbs have options
    text = (getdoc(verb) or "").replace("\n    ", "\n\n    ")  # an empty line ends an example
    app.command(_NAMES.get(verb), cls=Verb, help=text, short_help=line, context_settings=context)(verb)
app.command(hidden=True, cls=Verb)(job)


@app.callback(invoke_without_command=True)
def _edgert(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version of edgert and exit.")] = False,
    no_code: Annotated[
        bool, typer.Option(_NO_CODE, help="Refuse files that bring code of their own: python:, ops: and the like.")
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback of an error.")] = False,
) -> None:
    user_code.before_import = _refuse_code if no_code else _announce_code
    if version:
        from edgert._version import __version__
        from edgert.installation import commit

        revision = commit()
        typer.echo(f"edgert {__version__}" + (f" ({revision})" if revision else ""))
        raise typer.Exit
    if context.invoked_subcommand is None:
        from edgert.cli.start_page import start_page

        for line in start_page(Path.cwd()):
            typer.echo(errors.printable(line))


def _announce_code(name: str, where: str) -> None:
    if name not in _announced:
        _announced.add(name)
        typer.echo(f"runs code of your own: {name}", err=True)


def _refuse_code(name: str, where: str) -> None:
    why, fix = "an import runs the module's code", "leave out --no-code for files that you trust"
    raise errors.ConfigError(f"the file brings code of its own: module {name!r}", why=why, where=where, fix=fix)


def main() -> None:
    """Run the ``edgert`` command.

    Exit codes: 0 fine, 1 an EdgertError, 2 usage, 70 a bug in edgert, 130 interrupted.
    """
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")  # edgert's own errors and warnings report a bad image
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # file names and signs may not fit the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    for name in (_NO_CODE, _DEBUG):  # options of every verb, accepted behind the verb too
        if name in sys.argv:
            sys.argv = [sys.argv[0], name, *(word for word in sys.argv[1:] if word != name)]
    try:
        app()  # reports usage errors itself, and always leaves by SystemExit
    except (errors.EdgertError, MemoryError, RuntimeError, FileNotFoundError) as error:
        shown = error if isinstance(error, errors.EdgertError) else exhaustion_error(error)
        if shown is None:
            _report_bug()
        if _DEBUG in sys.argv:
            typer.echo(errors.printable("".join(traceback.format_exception(error))), err=True, nl=False)
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(str(shown), err=True)
        if any(getattr(thread, "is_left", False) for thread in threading.enumerate()):
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(errors.EXIT_ERROR)  # a stage hangs: it must not delay the exit as well
        sys.exit(errors.EXIT_INTERRUPTED if Interruption.by_signal else errors.EXIT_ERROR)
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF):
            _report_bug()
        # Functions that write files raise an EdgertError, so this error comes from standard output.
        with suppress(OSError):
            typer.echo(f"error: cannot write to standard output: {errors.cause(error)}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # buffered output would fail again at the exit
        sys.exit(errors.EXIT_ERROR)
    except Exception:  # noqa: BLE001 - the last line of defense: a bug is reported as one, with its traceback
        _report_bug()


def exhaustion_error(error: Exception) -> errors.EdgertError | None:
    """Return the EdgertError for exhausted memory, threads or temporary files; None for any other error.

    These are not bugs: the machine, its container or a limit (``ulimit``) has no room left.
    """
    if isinstance(error, MemoryError):
        fix = "a smaller input, fewer images at once, or more memory: edgert doctor shows what there is"
        return errors.DeviceError("not enough memory", why=str(error) or "none was left", fix=fix)
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        fix = "allow this process more threads (ulimit -u, pids limit) or memory"
        return errors.DeviceError("the system cannot start more threads", why=str(error), fix=fix)
    if isinstance(error, FileNotFoundError) and str(error.strerror).startswith(_NO_TEMPORARY):
        fix = "free some space, or point TMPDIR at a folder that can be written"
        return errors.DeviceError("no temporary file can be written", why=str(error.strerror), fix=fix)
    return None


def _report_bug() -> NoReturn:
    """Report the current exception as a bug, unless Ctrl-C caused it, and exit."""
    if Interruption.by_signal:
        sys.exit(errors.EXIT_INTERRUPTED)
    typer.echo(errors.printable(traceback.format_exc()), err=True)
    typer.echo("This is a bug in edgert, not in your input. Please report the lines above.", err=True)
    sys.exit(errors.EXIT_BUG)
