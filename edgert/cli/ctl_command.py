"""``edgert ctl``: show and change a pipeline that runs."""

import os
import shlex
from collections.abc import Iterator, Mapping
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from edgert.cli import option, terminal
from edgert.errors import EXIT_ERROR, DeviceError

_VERBS = "show (default), set, pause, resume, add, remove, apply, swap, back, save and trace"
VerbWord = Annotated[str, typer.Argument(metavar="[VERB]", help=f"One of {_VERBS}.")]
TokenFile = Annotated[
    Path | None, option.named("--token-file", "FILE", "File with the token of that page. Default: EDGERT_TOKEN.")
]


def ctl(
    verb: VerbWord = "show",
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD]...", help="Its keys and values, source, or stage and address.")
    ] = None,
    name: Annotated[
        str | None, option.named("--name", "NAME", "Which run, by its name:, or the path of its socket.")
    ] = None,
    url: Annotated[str | None, option.named("--url", "URL", "Instead: the live page of a run anywhere.")] = None,
    token_file: TokenFile = None,
    output: Annotated[Path | None, option.output("Of trace: .pftrace, .json or .html.")] = None,
    json: option.Json = None,
) -> None:
    """Show and change a pipeline that runs on this machine, without a restart.

    Finds every edgert run of the same user. A change is made as a whole or refused, and then nothing has changed. Which
    keys are live is the last part of show. apply prints what another file would change, and makes that so with --plan.
    save writes what differs to NAME.live.yaml, which is loaded after the file. trace records what every thread does for
    some seconds.

    Examples:
        edgert ctl show
        edgert ctl set models.parts.task.score=0.4 stages.find.every=2
        edgert ctl pause yard --name belt
        edgert ctl resume yard
        edgert ctl add gate rtsp://10.0.0.9/main
        edgert ctl remove gate
        edgert ctl apply belt.yaml
        edgert ctl show --url https://board.local:8080 --token-file token --json -
        edgert ctl swap parts new.onnx --shadow 500 --min-agreement 0.97 --keep 10m
        edgert ctl back parts
        edgert ctl save
        edgert ctl trace 10s -o late.pftrace
    """
    from edgert.control.client import find_socket, send_request, send_to_page
    from edgert.control.request import Request, read_file
    from edgert.control.trace_window import write_answer
    from edgert.timeline.trace_file import check_trace_path

    request = Request.of(verb, words or ()).with_texts()
    if verb != "trace":
        option.refuse({"--output": output}, "it goes with trace")
    output = output or Path("trace.pftrace")
    if verb == "trace":
        check_trace_path(output)  # before the trace is recorded
    if url is None:
        result = send_request(find_socket(name), request)
    else:
        token = os.environ.get("EDGERT_TOKEN", "") if token_file is None else read_file(token_file).strip()
        result = send_to_page(url, request, token)
    if verb == "trace":
        write_answer(result, output)
    if json is not None:
        terminal.write_json(result, json)
    screen = terminal.console(json)
    of = [f"--{key}={shlex.quote(value)}" for key, value in (("name", name), ("url", url)) if value is not None]
    repeated = " ".join(["edgert ctl apply", *map(shlex.quote, (words or [""])[:1]), *of])
    for line in _lines_of_answer(verb, result, repeated, url or "the run"):
        screen.print(terminal.styled(line, ""), soft_wrap=True)
    if verb == "apply" and not result.get("possible"):
        raise typer.Exit(EXIT_ERROR)


def _lines_of_answer(verb: str, result: Any, repeated: str, where: str) -> list[str]:
    """Return what an answer says. Raises DeviceError for one without its parts: anything may be behind ``--url``."""
    try:
        return list(_result_lines(verb, result, repeated))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        from edgert.control.client import NOT_EDGERT

        raise DeviceError(f"{where} {NOT_EDGERT}", why=f"its answer to {verb} lacks parts") from error


def _show_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"{result['name']}  {result['file']}"
    for name, row in result["sources"].items():
        yield f"  {name}: {row['state']}{_rates(row)}"
    for name, row in result["stages"].items():
        yield f"  {name}: {row['kind']} from {', '.join(row['from'])}{_rates(row)}"
    for name, row in result["swaps"].items():
        yield f"  model {name}: {row['text']}"
    yield "live keys"
    for key, value in result["live"].items():
        yield f"  {shlex.quote(f'{key}={_value_text(value)}')}"


def _value_text(value: Any) -> str:
    """Return a value as ``set`` accepts it; an empty text for None."""
    if value is None or isinstance(value, str):
        return value or ""
    return dumps(value, separators=(",", ":"), ensure_ascii=False)


def _before_and_after(one: Mapping[str, Any]) -> str:
    return " -> ".join(_value_text(value) or "none" for value in (one["was"], one["now"]))


def _rates(row: Mapping[str, Any]) -> str:
    fps = f", {row['fps']:.1f} fps" if row.get("fps") is not None else ""
    return f"{fps}, {row['dropped']} dropped" if row.get("dropped") else fps


def _plan_lines(result: Mapping[str, Any], command: str) -> Iterator[str]:
    """Yield the lines that ``apply`` prints: each change, and ``command`` with the plan that makes them."""
    for one in result["changes"]:
        values = f": {_before_and_after(one)}" if "was" in one else f": {one['why']}" if "why" in one else ""
        yield f"{one['effect']}  {one['key']}{values}"
    if not result["changes"]:
        yield "nothing differs"
    elif result["applied"]:
        yield "applied"
    elif not result["possible"]:
        yield "none of these changes can be applied to a run: change the file and restart"
    else:
        yield f"nothing has changed yet; to apply it: {command} --plan {result['plan']}"


def _result_lines(verb: str, result: Mapping[str, Any], command: str) -> Iterator[str]:
    """Yield the lines that a verb prints: what it did."""
    if verb == "show":
        yield from _show_lines(result)
    elif verb == "apply":
        yield from _plan_lines(result, command)
    elif verb in ("swap", "back"):
        yield f"model {result['model']}: {result['text']}"
        if verb == "swap":
            yield "edgert ctl show says how far it is"
    elif verb == "set":
        for one in result["changes"]:
            yield f"{one['key']}: {_before_and_after(one)}"
    elif verb == "save":
        keys, removed = ", ".join(result["keys"]), f"removed {result['path']}: " if result["removed"] else ""
        yield f"saved {result['path']}: {keys}" if keys else f"{removed}nothing differs from the pipeline's file"
    elif verb == "trace":
        lost = f"; {result['lost']} more were lost: the buffers were full" if result["lost"] else ""
        yield f"{result['seconds']:g} s of {result['pipeline']}, {result['events']} events{lost}"
        yield terminal.how_to_open(Path(result["path"]))
    elif verb in ("pause", "resume"):
        yield f"{result['source']}: {result['state']}"
    else:
        done = "added to" if verb == "add" else "removed from"
        yield f"{result['source']} {done} {', '.join(result['listeners'])}"
