"""``edgert replay``: run a recording again, and compare."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgert.cli import option, terminal

if TYPE_CHECKING:
    from edgert.replayer.expectation import Difference

_DIFFERENCE_FOLDER = Path("replay-difference")
_SHOWN_CHARACTERS = 600


def replay(
    recordings: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDING...", help="File of sink: mcap, or all files of one run.", show_default=False),
    ],
    begin: Annotated[
        str | None, option.named("--from", "TIME", "Compare from this time: 10:02:14, or 90s after the start.")
    ] = None,
    length: Annotated[str | None, option.named("--for", "TIME", "Compare for this time: 30s.")] = None,
    model: Annotated[
        list[str] | None, option.named("--model", "[NAME=]FILE", "ONNX model in place of the recorded one. Repeatable.")
    ] = None,
    expect: Annotated[
        bool, option.flag("--expect", "Exit code 1 where a result is not the recorded one, bit for bit.")
    ] = False,
    within: Annotated[
        float | None,
        option.named("--within", "PART", "Accept numbers that differ by this part: 0.01 for a GPU.", min=0),
    ] = None,
    minimise: Annotated[
        bool, option.flag("--minimise", "Find the shortest window that still shows the first difference.")
    ] = False,
    json: option.Json = None,
) -> None:
    """Run a recorded run again: the same frames, drops, batches, settings and times, in one thread.

    Stages begin as at the beginning of the recording, also with --from: frames before the window are run, and not
    compared. Sinks get nothing. The first difference is written to the folder replay-difference: its frame as an image
    and both records.

    Examples:
        edgert replay run.mcap --expect
        edgert replay run.mcap --from 10:02:14 --for 30s --model parts=new.onnx
        edgert replay run.mcap --expect --minimise
        edgert replay run.mcap --expect --within 0.01 --json differences.json
    """
    from edgert.recording.recording import open_recording
    from edgert.replayer.replayed import Options, replay as replayed, shortest_window, window_of

    recording = open_recording(recordings)
    window_ns = window_of(recording, begin, length)
    named = (text.partition("=") if "=" in text else ("", "", text) for text in model or ())
    models = {name: Path(file) for name, _, file in named}
    options = Options(models, window_ns, within=within, must_be_exact=expect)
    made = replayed(recording, options)
    screen, data = terminal.console(json), made.to_json()
    for note in made.notes:
        screen.print(terminal.styled(f"note: {note}", "dim"), soft_wrap=True)
    count = made.same + made.different
    same = f"{made.different} of {count} differ" if made.different else f"all {count} results are the recorded ones"
    missing = f"; {made.missing} results could not be made" if made.missing else ""
    summary = f"{made.frames} frames replayed: {same if count else 'no result to compare'}{missing}"
    screen.print(terminal.styled(summary, "green" if made.first is None else "red"), soft_wrap=True)
    if made.first is not None:
        _show_difference(screen, made.first)
        if minimise:
            data["shortest"] = _show_shortest(screen, shortest_window(recording, options, made.first))
    terminal.write_json(data, json)
    if expect and (made.first is not None or not made.same):
        raise typer.Exit(1)


def _show_difference(screen: Any, first: Difference) -> None:
    """Print the first difference, and write its frame and both records to files."""
    from edgert.files import replace_bytes, replace_text

    for name, record in (("recorded", first.recorded), ("replayed", first.replayed)):
        replace_text(_DIFFERENCE_FOLDER / f"{name}.json", json_text.dumps(record, indent=1) + "\n")
    lines = [f"first: frame {first.frame} of {first.stream}, {first.time}, stage {first.stage}", f"  {first.where}"]
    for name, record in (("recorded", first.recorded), ("replayed", first.replayed)):
        lines.append(f"  {name}: {json_text.dumps(record)[:_SHOWN_CHARACTERS]}")
    written = f"{_DIFFERENCE_FOLDER}/recorded.json and replayed.json"
    if (png := first.png()) is not None:
        replace_bytes(_DIFFERENCE_FOLDER / "frame.png", png)
        written = f"{_DIFFERENCE_FOLDER}/frame.png, recorded.json and replayed.json"
    for line in (*lines, f"written: {written}"):
        screen.print(terminal.styled(line, ""), soft_wrap=True)


def _show_shortest(screen: Any, shortest: Any) -> dict[str, Any] | None:
    if shortest is None:
        screen.print("no window shows this difference when stages begin without a past", soft_wrap=True)
        return None
    what = f"{shortest.frames} frames, {shortest.seconds:.3f} s, from {shortest.time}"
    screen.print(terminal.styled(f"shortest window that shows it: {what}", ""), soft_wrap=True)
    return {"frames": shortest.frames, "seconds": shortest.seconds, "time": shortest.time}
