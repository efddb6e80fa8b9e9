"""``edgert build``, and ``edgert job``, which is the board's side of ``edgert build --remote``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from edgert import installation, units
from edgert.cli import option, terminal
from edgert.cli.progress import build_progress, stop_on_signal
from edgert.reporter import Reporter

if TYPE_CHECKING:
    from edgert.backend.chain import Skipped
    from edgert.compiler.build_pipeline import Built
    from edgert.compiler.finish import Finished
    from edgert.config import PipelineFile
    from edgert.remote.remote_build import RemoteBuilt
    from edgert.reporter import Progress
    from edgert.tuner.trials import Tuned


_NOT_IN_NAMES = re.compile(r"[^\w.-]")  # what the name of a bundle's file may not contain

Tune = Annotated[bool, option.flag("--tune", "Search for the settings that run each model fastest on this machine.")]
Remote = Annotated[
    str | None, option.named("--remote", "USER@HOST", "Compile on this board over ssh, and bring the engines back.")
]
RemoteEdgert = Annotated[
    str | None,
    option.named(
        "--remote-edgert", "PATH", "Path of edgert on that board, from its home folder. Default: search for it."
    ),
]

Sign = Annotated[
    Path | None,
    option.named(
        "--sign",
        "KEY",
        "Sign the bundle with this private key of ssh-keygen, or the .pub of one that ssh-agent has. A bundle is "
        "only signed, unless -o is given, too.",
        exists=True,
        dir_okay=False,
    ),
]


def build(
    pipeline: option.BundleArgument,
    board: option.Board = None,
    mode: Annotated[str | None, option.mode("Default: the one that the board boots into.")] = None,
    output: Annotated[Path | None, option.output("Default: NAME.edgert, by the pipeline's name.")] = None,
    trt: option.Trt = None,
    tune: Tune = False,
    strict: option.Strict = False,
    remote: Remote = None,
    remote_edgert: RemoteEdgert = None,
    sign: Sign = None,
    signers: option.Signers = None,
    overrides: option.Set = None,
    json: option.Json = None,
) -> None:
    """Prepare a pipeline for a board on any machine, and pack all of it into one file; or finish that file on a board.

    Models are checked, given static shapes, rewritten for the DLA, calibrated, quantized and placed. Then they are
    compared with the original models. Every step is cached under what it depends on: a second build does nothing, and
    an interrupted one resumes.

    Engines are compiled on the board, once: no x86 machine can build them. Given a bundle, this verb does just that. It
    compiles the missing engines here, checks and times them, and with -o packs them.

    --json writes one line for every event, and the result as the last line.

    Examples:
        edgert build pipeline.yaml --board orin-nx-16gb --trt 10.3 -o dock.edgert
        edgert build pipeline.yaml --tune --json build.jsonl
        edgert build pipeline.yaml --board orin-nx-16gb --mode 15W --strict --set models.parts.precision=int8
        edgert build dock.edgert --signers allowed_signers
        edgert build pipeline.yaml --remote user@jetson -o dock.edgert
        edgert build dock.edgert --sign ~/.ssh/id_ed25519
    """
    from edgert.bundle.bundle import is_bundle
    from edgert.bundle.signature import signers_here
    from edgert.config import load_pipeline

    source = installation.pipeline_path(pipeline)
    if remote is None:
        option.refuse({"--remote-edgert": remote_edgert}, "it is the path of edgert on the board of --remote")
    else:
        option.refuse({"--tune": tune}, "it is for builds on this machine")
    file = None
    if is_bundle(source):
        given = {"--board": board, "--mode": mode, "--trt": trt, "--set": overrides, "--tune": tune}
        option.refuse(given, f"{source} is a bundle, whose build has already decided that")
    else:
        why = f"it is for builds that compile engines: those of a bundle, or with --remote; {source} is a pipeline file"
        option.refuse({"--strict": strict, "--signers": signers} if remote is None else {}, why)
        file = load_pipeline(source, overrides or ())
        output = output or Path(f"{_NOT_IN_NAMES.sub('-', file.config.name) or 'pipeline'}.edgert")
    if file is None and sign is not None and output is None and remote is None:
        terminal.write_json({"bundle": str(source), **_sign(source, sign, signers)}, json)
        return
    path = output or source
    target: dict[str, Any] = {"board": board, "mode": mode, "tensorrt": trt}
    with _progress_and_json(json) as (on_progress, write), stop_on_signal(on_progress.stop.set):
        if remote is not None:
            how = {**target, "program": remote_edgert, "strict": strict, "key": sign, "signers": signers_here(signers)}
            made, found, show = _compile_on_board(file or source, path, remote, **how, on_progress=on_progress)
        elif file is None:
            how = {"signers": signers_here(signers), "strict": strict}
            made, found, show = _compile_here(source, output, **how, on_progress=on_progress)
        else:
            made, found, show = _build(file, path, **target, tune=tune, on_progress=on_progress)
        signed = {} if sign is None else _sign(path, sign, signers)
        outcome = {
            "bundle": None if made.path is None else str(made.path),
            "written": made.written,
            "size_bytes": made.size_bytes,
            "seconds": round(made.seconds, 3),
            "board": made.manifest.board,
        }
        write({**outcome, **found, **signed})
    if not terminal.is_stdout(json):
        show(terminal.console())


# Each of these returns what it made, further parts of the JSON, and a function that prints the outcome.

_Made: TypeAlias = "tuple[Built | Finished, Mapping[str, object], Callable[[terminal.Console], None]]"


def _compile_on_board(source: PipelineFile | Path, path: Path, remote: str, **how: Any) -> _Made:
    from edgert.remote.remote_build import build_remote

    made = build_remote(source, path, remote, **how)
    found = {"board": made.remote_board.name, **_engines_json(made)}
    return made, found, partial(_show_compiled, made, f"on {remote}")


def _compile_here(source: Path, output: Path | None, **how: Any) -> _Made:
    from edgert.compiler.finish import finish

    made = finish(source, output, **how)
    found = {"target": made.target, **_engines_json(made), "skipped": [asdict(one) for one in made.skipped]}
    return made, found, partial(_show_compiled, made, "here")


def _build(file: PipelineFile, path: Path, *, tune: bool, **how: Any) -> _Made:
    from edgert.compiler.build_pipeline import build as build_pipeline

    made, tuned = build_pipeline(file, path, tune=tune, **how), dict[str, "Tuned"]()
    found: dict[str, object] = {"models_bytes": made.manifest.onnx_bytes, "engines": made.manifest.engines}
    if tune:
        from edgert.inspect_model import inspect_bundle

        tuned |= inspect_bundle(made.path).tuned
        found["tuned"] = {name: one.to_json() for name, one in tuned.items()}
    return made, found, partial(_show_built, made, tuned)


def _sign(path: Path, key: Path, signers: Path | None) -> dict[str, object]:
    """Sign a bundle, print the signer, and return the signature's part of the JSON."""
    from edgert.bundle.bundle import sign_bundle

    signer = sign_bundle(path, key, signers)
    typer.echo(f"{path} is signed by {signer}", err=True)
    return {"signed_by": signer.key}


@contextmanager
def _progress_and_json(json: Path | None) -> Iterator[tuple[Reporter, Callable[[object], None]]]:
    """Yield a reporter of a build's progress, and a function that writes a line of JSON.

    Progress is also written as JSON, and shown unless JSON goes to standard output.
    """
    with terminal.json_lines(json) as write, nullcontext() if terminal.is_stdout(json) else build_progress() as show:

        def on_progress(event: Progress) -> None:
            write(event.to_json())
            if show is not None:
                show(event)

        yield Reporter(on_progress), write


def _engines_json(made: RemoteBuilt | Finished) -> dict[str, object]:
    waiting = {model: asdict(one) for model, one in made.waiting.items()}
    return {"engines": dict(made.engines), "waiting": waiting}


def _show_compiled(made: RemoteBuilt | Finished, place: str, console: terminal.Console) -> None:
    show_engines(console, made.engines, made.waiting, place)
    if made.path is None:
        console.print(f"cached on this machine: edgert run finds it ({made.seconds:.1f} s)")
    else:
        _show_bundle(made, "", console)


def show_engines(
    console: terminal.Console, engines: Mapping[str, str], waiting: Mapping[str, Skipped], place: str
) -> None:
    """Print which engine runs each model in this place, and which compiled engines cannot run there yet."""
    for model, engine in engines.items():
        console.print(f"{model} runs with {engine} {place}", markup=False)
    for model, one in waiting.items():
        so_far = "" if model in engines else "; no other engine of engines: runs it"
        line = f"{model} is compiled for {one.engine}, which cannot run {place} yet{so_far}: {one.why}"
        console.print(line, markup=False)


def _show_built(made: Built, tuned: Mapping[str, Tuned], console: terminal.Console) -> None:
    from edgert.cli.bundle_tables import show_tuned

    for name, one in tuned.items():
        show_tuned(console, name, one)
    _show_bundle(made, f", {units.format_bytes(made.manifest.onnx_bytes)} of it models", console)
    if not made.manifest.tensorrt:
        return
    console.print(
        f"Not compiled here: no x86 machine can build an engine for {made.manifest.board}. A TensorRT engine belongs "
        "to the GPU, TensorRT and system it was made on, and a DLA's part needs the DLA."
    )
    name = made.path.name
    if made.without_edgert:
        console.print(
            f"{made.without_edgert}. For TensorRT {made.manifest.tensorrt} there:  edgert export {name} --format onnx "
            "-o models  — here the bundle runs with ONNX Runtime.",
            markup=False,
        )
        return
    console.print(
        f"On the board: copy {name} there and type  edgert run {name}  — it is compiled once by its TensorRT "
        f"(the bundle expects {made.manifest.tensorrt}). Here it runs with ONNX Runtime.",
        markup=False,
    )


def _show_bundle(made: Built | Finished, models: str, console: terminal.Console) -> None:
    word = "written" if made.written else "nothing has changed; left as it is"
    size = units.format_bytes(made.size_bytes)
    console.print(f"[green]→[/] {made.path}: {size}{models}; {word} ({made.seconds:.1f} s)")


def job(
    words: Annotated[list[str], typer.Argument(metavar="ACTION WORDS...", help="See edgert.remote.board_job.")],
) -> None:
    """Do the board's part of a remote build; a workstation calls this over ssh."""
    from edgert.remote.board_job import perform

    perform(words, sys.stdin.buffer, sys.stdout.buffer)
