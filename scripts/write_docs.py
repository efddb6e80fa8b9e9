"""Writes the generated pages of docs/ from the code.

python scripts/write_docs.py [--check]     # --check only compares them
"""

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import dla.table
from dla.limit import LIMITS, PAGES as SOURCE_PAGES
from edgert import errors
from edgert.board.record import boards, find_board
from edgert.cli import app, boards_command, file_commands
from edgert.cli.boards_command import BOARD_HEADINGS, LEGEND, board_row, mode_headings, mode_notes, mode_row
from edgert.cli.terminal import NONE
from edgert.config import engine_choice, model_section, pipeline_file, stages as stage
from edgert.config.fields import Kinded, section_of_kind
from edgert.graph.dla_rewrites.apply import REWRITES
from edgert.installation import labels_names
from edgert.stages.kinds import ByteTrackStage, FileSink
from edgert.stages.sink.send.sink import Sends
from edgert.stages.sink.stream.broadcast import Streams
from edgert.wiring.known import Measured, measurements, models
from tools import measured_tables

DOCS = Path(__file__).resolve().parents[1] / "docs"
MEASURED = DOCS.parent / "tests/bench/measured"
STAGES = (
    stage.SourceStage,
    stage.InferStage,
    stage.TrackStage,
    stage.DrawStage,
    stage.CropStage,
    stage.PythonStage,
    stage.PackageStage,
    stage.SinkStage,
)
SHARED: tuple[type[BaseModel], ...] = (FileSink, Streams, Sends, ByteTrackStage)
"""Sections with keys of several kinds, which the page lists once."""


def cli_page() -> str:
    group: Any = typer.main.get_command(app)
    shown = {name: command for name, command in group.commands.items() if not command.hidden}
    rows = {name: [row for one in command.params if (row := option_row(one))] for name, command in shown.items()}
    counts = Counter(row for own in rows.values() for row in own)
    often = [row for row, count in counts.items() if count >= _COMMON and row.startswith("- `-")]
    named = Counter(row.split("`")[1].split()[0] for row in often)
    common = [row for row in often if named[row.split("`")[1].split()[0]] == 1]
    every = [row for one in group.params if one.name in ("debug", "no_code") and (row := option_row(one))]
    parts = ["# The command line", "", "Written by `scripts/write_docs.py` from `edgert --help`.", ""]
    parts += ["```sh", "edgert --help", "```", "", "## Options of several verbs", ""]
    parts += [*every, *common, "", "## Exit codes", ""]
    parts += ["| code | meaning |", "|---|---|", *(f"| {code} | {what} |" for code, what in EXIT_CODES.items()), ""]
    for name, command in shown.items():
        own = [row for row in rows[name] if row not in common]
        also = [f"`{options[0]}`" for row in rows[name] if row in common and (options := re.findall(r"--[\w-]+", row))]
        parts += [f"## edgert {name}", "", *help_text(command), ""]
        parts += [*own, ""] if own else []
        parts += [f"Also: {', '.join(also)}.", ""] if also else []
    return "\n".join([*parts, "## Completion", "", *COMPLETION])


_COMMON = 2  # number of verbs with the same option from which the page lists it once
EXIT_CODES = {
    0: "success",
    1: "an error, which edgert explains",
    2: "wrong usage",
    70: "a bug in edgert",
    130: "interrupted",
}
COMPLETION = (
    "```sh",
    "edgert --install-completion    # verbs, options, boards and pipelines, in bash, zsh, fish or PowerShell",
    "edgert --show-completion       # only prints how",
    "```",
    "",
)


def help_text(command: Any) -> list[str]:
    """Return the lines of a verb's help, its examples as one block."""
    text, _, examples = inspect.cleandoc(command.help or "").partition("\nExample")
    lines = [line.strip() for line in examples.partition(":")[2].splitlines() if line.strip()]
    code = [line for line in lines if line.startswith(("edgert ", "#"))]
    rest = [line for line in lines if line not in code]
    return [text.rstrip(), *(["", "```sh", *code, "```"] if code else []), *(["", *rest] if rest else [])]


def option_row(parameter: Any) -> str:
    """Return one argument as an item of a list; empty for ``--help`` and what is hidden."""
    if "--help" in parameter.opts or parameter.hidden:
        return ""
    metavar = parameter.metavar or ""
    is_option = parameter.opts[0].startswith("-")
    names = ", ".join(sorted(parameter.opts, key=len)) if is_option else metavar or parameter.name
    shown = f"{' / '.join((names, *parameter.secondary_opts))} {metavar}".strip() if is_option else names
    return f"- `{shown}`: {' '.join((parameter.help or '').split())}{shown_default(parameter)}"


def shown_default(parameter: Any) -> str:
    """Return a sentence on the default of an option; empty without one."""
    default = parameter.default
    is_flag = getattr(parameter, "is_flag", False)
    return "" if is_flag or default in (None, "") else f" Default: `{default}`."


START = """
Describe sources, models, trackers and outputs in one YAML file.

```sh
edgert new yolov8n.onnx        # writes a file for your model
edgert validate pipeline.yaml  # reports every mistake with its line
edgert run pipeline.yaml
```

## The seven keys that matter

```yaml
models:
  parts:
    onnx: parts.onnx
    task: {detect: yolox, labels: parts.txt, score: 0.4}
    input: {resize: letterbox, color: rgb, std: 255}
stages:
  camera: {source: "rtsp://10.0.0.7/stream"}
  find: {infer: parts, from: camera}
  track: {track: bytetrack, from: find}
  events: {sink: jsonl, from: track, path: out/events.jsonl}
```

| key | meaning |
|---|---|
| `onnx` | the ONNX file of a model |
| `task` | what its outputs mean, and its labels: [task](#task) |
| `input` | how images are prepared: [input](#input) |
| `source` | a camera, file or stream: [source](#source) |
| `infer` | the model that a stage runs: [infer](#infer) |
| `from` | the stage that a stage listens to |
| `sink` | where results go: [sink](#sink) |

- Inputs are looked for beside the file, then in the current folder. Outputs are relative to the current folder.
- `${VAR}` and `${VAR:-default}` come from the environment.
- Durations are `500ms`, `10s`, `5m`, `1h` or `7d`, sizes `64MiB` or `20GB`.
- `--set stages.camera.fps=15` overrides any key. `edgert schema` prints a JSON Schema, which editors use.
- Other packages can add sources, tasks, trackers, stages and sinks: [extending](extending.md).

Brackets hold the values that a key takes, then its default. Folded lists hold keys for experts.
"""
BASIC = frozenset(
    {
        *("name", "board", "engines", "budgets", "models", "stages"),
        *("onnx", "task", "input", "precision", "calibrate", "resize", "color", "mean", "std", "size"),
        *("source", "fps", "loop", "realtime", "limit", "decode", "infer", "crop", "every", "batch", "profile"),
        *("high", "keep", "camera_motion", "path", "rotate", "existing", "quality", "host", "port", "token"),
        *("server", "user", "password", "send", "attach", "topic", "subject", "clips", "zones", "lines"),
    }
)
"""Keys that every reader sees; a longer table has the others folded below."""
_SHORT = 6  # rows of a table that is not folded


def pipeline_page() -> str:
    model = model_section.ModelConfig
    common = stage.InferStage.model_fields.keys() & stage.DrawStage.model_fields.keys()
    parts = ["# The pipeline file", "", "Written by `scripts/write_docs.py` from `edgert/config`.", START]
    parts += ["## Top level", "", *keys(pipeline_file.PipelineConfig)]
    parts += ["## budgets", "", *keys(pipeline_file.BudgetConfig), "## models.NAME", "", *keys(model)]
    parts += [
        "### task",
        "",
        "Every task takes these; `python` has no `options`:",
        "",
        *keys(model_section.EmbedTask, only=TASK_KEYS),
    ]
    for task in model_section.TASKS.values():
        parts += titled(f"**{verb(task, model_section.TASK_VERBS)}**", task, leave_out=TASK_KEYS)
    parts += ["### input", "", *titled("", model_section.InputConfig)]
    for name in ("calibrate", "quantize", "accuracy", "tuning", "tensorrt"):
        parts += [f"### {name}", "", *folded(titled("", EXPERT[name]))]
    parts += ["### placement", "", inspect.cleandoc(engine_choice.PLACEMENT_HELP), ""]
    parts += [
        "## stages.NAME",
        "",
        "A stage does one thing, named by its verb. Every stage takes these; a source has no `from` and `watchdog`:",
        "",
    ]
    parts += keys(stage.InferStage, only=common)
    for kind in STAGES:
        parts += [f"### {verb(kind, stage.STAGE_VERBS)}", "", *titled("", kind, leave_out=common)]
        parts += kinds(kind) if issubclass(kind, Kinded) else []
    for name, section in (("crop", stage.CropConfig), ("tiles", stage.TileConfig), ("batch", stage.BatchConfig)):
        parts += [f"### {name} of an infer stage", "", *titled("", section)]
    return "\n".join(parts)


TASK_KEYS = frozenset({"labels", "options"})
EXPERT: Mapping[str, type[BaseModel]] = {
    "calibrate": model_section.CalibrateConfig,
    "quantize": model_section.QuantizeConfig,
    "accuracy": model_section.AccuracyConfig,
    "tuning": model_section.TuningConfig,
    "tensorrt": model_section.TensorRtConfig,
}


def titled(title: str, section: type[BaseModel], leave_out: Container[str] = ()) -> list[str]:
    """Return a section's docstring behind a title, and the table of its keys."""
    about = inspect.cleandoc(section.__doc__ or "").replace("``", "`")
    table = keys(section, leave_out)
    return [": ".join(filter(None, (title, about))), "", *(table if any(table) else [])]


def folded(lines: Iterable[str], title: str = "keys") -> list[str]:
    """Return lines that a reader opens with a click."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "</details>", ""]


def kinds(family: type[Kinded]) -> list[str]:
    """Return the keys of each of edgert's own kinds, besides those of its family; shared keys are listed once."""
    key, registry = family.family
    sections = {name: section_of_kind(family, registry, name) for name in registry.own}
    parts = []
    known: set[str] = {*family.model_fields}
    shared = [base for base in SHARED if any(issubclass(own, base) for own in sections.values())]
    for base in shared:
        names = ", ".join(f"`{name}`" for name, own in sections.items() if issubclass(own, base))
        parts += [f"{names} take:", "", *keys(base, leave_out=known)]
    for name, own in sections.items():
        base = next((base for base in shared if issubclass(own, base)), family)
        again = {key for key, field in own.model_fields.items() if same(field, base.model_fields.get(key))}
        parts += titled(f"**{key}: {name}**", own, leave_out=again)
    return parts


def same(field: Any, other: Any) -> bool:
    """Return whether a field has the description and default of the family's field."""
    return other is not None and (field.description, field.default) == (other.description, other.default)


def verb(section: type[BaseModel], verbs: tuple[str, ...]) -> str:
    """Return the key that identifies a section."""
    own = [name for name in section.model_fields if name in verbs]
    return next(name for name in own if section.model_fields[name].is_required())


def keys(section: type[BaseModel], leave_out: Container[str] = (), only: Container[str] | None = None) -> list[str]:
    """Return a list of a section's keys: values, default, meaning; a long one has those for experts folded below."""
    properties = section.model_json_schema(by_alias=True)["properties"]
    rows: list[tuple[bool, str]] = []
    for name, field in section.model_fields.items():
        if name in leave_out or (only is not None and name not in only) or field.description is None:
            continue
        key = field.alias or name
        shown = "" if field.is_required() else plain(field.default, properties[key])
        taken = "; ".join(filter(None, (values(properties[key]), shown)))
        row = f"- `{key}` ({taken}): {' '.join((field.description or '').split())}"
        rows.append((name in BASIC or field.is_required(), row))
    first, more = ([row for is_first, row in rows if is_first is wanted] for wanted in (True, False))
    if len(rows) <= _SHORT or not first or not more:
        return [*(row for _, row in rows), ""]
    return [*first, "", *folded([*more, ""], "more keys")]


@cache
def sections() -> frozenset[str]:
    """Return the names of all sections of a pipeline file."""
    return frozenset(pipeline_file.json_schema()["$defs"])


def values(schema: dict[str, Any]) -> str:
    """Return the possible values of a key, in few words."""
    if "enum" in schema:
        return f"`{', '.join(str(one) for one in schema['enum'] if one is not None)}`"
    if "const" in schema:
        return "off" if schema["const"] is False else str(schema["const"])
    if "examples" in schema:
        return f"like `{schema['examples'][0]}`"
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    if options:
        return " or ".join(dict.fromkeys(filter(None, map(values, options))))
    if "oneOf" in schema or schema.get("$ref", "").rpartition("/")[2] in sections():
        return "see below"
    if schema.get("type") == "array":
        return "list"
    if "$ref" in schema or schema.get("type") == "object":
        return "mapping"
    kind = {"integer": "whole number", "boolean": "`true, false`", "string": schema.get("format", "text")}
    return kind.get(schema.get("type", ""), schema.get("type", ""))


def plain(value: object, schema: dict[str, Any]) -> str:
    """Return a default as YAML."""
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel) or value in ({}, (), ""):
        return ""
    if isinstance(value, tuple):
        return f"`{value[0]:g}`" if len(value) == 1 else f"`{list(value)}`"
    shown = values(schema)
    if isinstance(value, float) and re.match(r"like `\d+m?s`", shown):
        return f"`{duration(value)}`"
    if isinstance(value, int) and shown.startswith("like `") and "iB`" in shown:
        return f"`{value // 2**20}MiB`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def duration(seconds: float) -> str:
    """Return ``5s``, ``500ms`` or ``7d``."""
    for unit, length in (("d", 86400), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{1000 * seconds:g}ms" if seconds else "0s"


def escaped(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("\\\\|", "\\|")


def boards_page() -> str:
    rows = [board_row(board) for board in boards()]
    reasons: dict[str, list[str]] = {}
    for one in boards():
        if one.jetpack.no_edgert:
            reasons.setdefault(one.jetpack.no_edgert, []).append(f"`{one.name}`")
    parts = [
        "# Boards",
        "",
        "Written by `scripts/write_docs.py` from `configs/boards`.",
        "",
        "Look up what is known of each Jetson and its power modes, or describe a board of your own.",
        "",
        "```sh",
        "edgert boards                                        # this list",
        "edgert boards orin-nx-16gb --sources                 # the source of every number, and how sure it is",
        "edgert boards orin-nx-16gb --yaml > my-board.yaml    # a start for a board of your own",
        "```",
        "",
        LEGEND,
        "",
        *table(BOARD_HEADINGS, rows),
        "| confidence | means |",
        "|---|---|",
        "| high | in the maker's file or data sheet, or several independent sources agree |",
        "| medium | in one table, or in a copy that could not be compared |",
        "| low | derived from other numbers, or assumed |",
        "",
        "## Boards that edgert does not run on",
        "",
        "`edgert plan` predicts them, and `edgert export --format onnx` writes models for their TensorRT. `edgert run`",
        "is an error there.",
        "",
        *(f"- {', '.join(names)}: {reason}." for reason, names in reasons.items()),
        "",
        "## A board of your own",
        "",
        "Change `name` in `my-board.yaml`, then its numbers; `null` is unknown. Use it by `board: my-board.yaml` in a",
        "pipeline, or `--board my-board.yaml`. All mistakes are reported at once, with their lines.",
        "",
        "## Power modes",
        "",
        "By name, as `nvpmodel -p` lists them. \\* is the one at boot. `edgert boards NAME` adds TOPS.",
        "",
    ]
    headings = [heading for heading in mode_headings(find_board("orin-nx-16gb")) if "TOPS" not in heading]
    owners: dict[tuple[str, ...], list[str]] = {}
    notes: dict[str, list[str]] = {}
    for board in boards():
        for mode in board.modes:
            cells = dict(zip(mode_headings(board), mode_row(board, mode), strict=True))  # TOPS follow from clocks
            owners.setdefault(tuple(cells.get(heading, NONE) for heading in headings), []).append(board.name)
        for line in mode_notes(board):
            notes.setdefault(line, []).append(board.name)
    modes = [(", ".join(names), *cells) for cells, names in owners.items()]
    said = [f"- {', '.join(names)}: {line}" for line, names in notes.items() if line != BOOTS]
    return "\n".join([*parts, *folded(table(("boards", *headings), modes), "all power modes"), *said])


BOOTS = "* boots into this one."  # a note on every board, which the page has once


def with_tables(name: str, tables: Mapping[str, list[str]]) -> str:
    """Return a page of docs/ with new tables, each between a line that names it and ``<!-- end -->``."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for title, lines in tables.items():
        begin = f"<!-- {title}: written by scripts/write_docs.py -->"
        pattern = f"{re.escape(begin)}.*?<!-- end -->"
        written = "\n".join((begin, "", *lines, "<!-- end -->"))
        text, found = re.subn(pattern, lambda _, written=written: written, text, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"docs/{name} needs one line {begin!r}, with <!-- end --> behind it")
    return text


def dla_page() -> str:
    return with_tables("dla.md", dla_tables())


def benchmarks_page() -> str:
    """Return the page with tables of the runs in tests/bench/measured."""
    of = measured_tables
    tables = dict[str, list[str]]()
    for make in (of.of_races, of.of_cameras, of.of_zoo, of.of_check, of.of_authors, of.of_jobs, of.of_strangers):
        tables |= make(MEASURED)
    return with_tables("benchmarks.md", tables)


def streaming_page() -> str:
    return with_tables("streaming.md", measured_tables.of_streams(MEASURED))


def costs_page() -> str:
    chips = sorted((DOCS.parent / "configs/costs").glob("tegra*.yaml"))
    accuracy = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))["accuracy"] for path in chips}
    sisters = yaml.safe_load((DOCS.parent / "configs/costs/sisters.yaml").read_text(encoding="utf-8"))
    tables = {**measured_tables.of_costs(MEASURED), **measured_tables.of_decisions(MEASURED)}
    tables |= {**measured_tables.of_bars(accuracy), **measured_tables.of_sisters(sisters, accuracy)}
    return with_tables("costs.md", tables)


def models_page() -> str:
    rows = [(*boards_command.family_row(one)[:2], one.family.export and f"`{one.family.export}`") for one in models()]
    pairs = sorted(
        ((name, each) for name, some in measurements().items() for each in some), key=lambda one: one[1].model
    )
    return with_tables("models.md", {
        "families": table((*boards_command.FAMILY_HEADINGS[:2], "export with its own tools"), rows),
        "measured": table(MEASURED_MODEL, [measured_row(*pair) for pair in pairs]),
        "labels": [", ".join(f"`{name}`" for name in labels_names()), ""],
    })  # fmt: skip


MEASURED_MODEL = ("model", "family", "FP32", "INT8", "95 %, points", "outputs", "in FP32", "DLA of Orin", "of Xavier")


def measured_row(family: str, one: Measured) -> tuple[str, ...]:
    """Return the row of a model of configs/models.json."""
    before, interval = "" if one.fp32 is None else f"{one.fp32:.3f}", ""
    if one.low is not None and one.high is not None:
        interval = f"{0 - round(one.high, 1):+.1f} to {0 - round(one.low, 1):+.1f}"
    signal = "" if one.signal_db is None else f"{one.signal_db:.0f} dB"
    kept = f"{one.kept} of {one.layers}" if one.layers else one.refused
    shares = [
        f"{100 * one.dla[number].share:.0f} % in {one.dla[number].segments}" if one.dla else "" for number in (2, 1)
    ]
    cost = f"{one.cost}, with a warning" if one.cost and one.warnings else one.cost
    return (one.model, family, before, cost, interval, signal, kept, *shares)


def dla_tables() -> dict[str, list[str]]:
    """Return name → lines of every table of docs/dla.md."""
    pages = {address: f"[{name}]" for name, address in SOURCE_PAGES.items()}
    operators: dict[str, list[str]] = {}
    for operator, layer in sorted(dla.LAYERS.items()):
        operators.setdefault(layer.name, []).append(operator)
    limits = [(f"`{name}`", str(one).replace(" to ", "–"), pages[one.source]) for name, one in LIMITS.items()]
    rules = [
        (f"`{name}`", ", ".join(dla.table.layers_of(name)) or "every node", about, pages[dla.SOURCES[name]])
        for name, about in sorted(dla.table.ABOUT.items())
    ]
    return {
        "rewrites": table(
            ("rewrite", "what it does"),
            [(f"`{one.name}`", one.does) for one in REWRITES.values()],
        ),
        "limits": table(("rule", "range", "source"), limits),
        "rules": table(("rule", "layers", "what it says", "source"), rules),
        "layers": table(
            ("TensorRT's layer", "ONNX operators"), [(name, ", ".join(ops)) for name, ops in sorted(operators.items())]
        ),
        "pages": [*(f"[{name}]: {address}" for name, address in SOURCE_PAGES.items()), ""],
    }


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a Markdown table and the empty line after it."""
    return measured_tables.lines(tuple(map(escaped, headings)), (tuple(map(escaped, row)) for row in rows))


def errors_page() -> str:
    lines = ["# Errors by code", "", *ERRORS.strip().splitlines(), "", "| code | about |", "|---|---|"]
    pages = file_commands.explanations()
    lines += [f"| {code} | {file_commands.explanation_title(text)} |" for code, text in pages.items()]
    kinds = sorted(errors.EdgertError.__subclasses__(), key=lambda kind: kind.code)
    lines += ["", "## Codes of classes", "", "| code | class | about |", "|---|---|---|"]
    lines += [f"| {one.code} | `{one.__name__}` | {inspect.getdoc(one)} |" for one in kinds if one.code != "E000"]
    return "\n".join([*lines, ""])


ERRORS = """
Written by `scripts/write_docs.py`. Codes are stable: match on `error.code` in Python, or on `code` in JSON.

```sh
edgert explain E103
```

These have a page of their own, and their messages end with this command.
"""

PAGES = {
    "benchmarks.md": benchmarks_page,
    "boards.md": boards_page,
    "cli.md": cli_page,
    "errors.md": errors_page,
    "costs.md": costs_page,
    "dla.md": dla_page,
    "streaming.md": streaming_page,
    "models.md": models_page,
    "pipeline-file.md": pipeline_page,
    "edgert.schema.json": lambda: json.dumps(pipeline_file.json_schema(), indent=1, ensure_ascii=False),
}


def main() -> None:
    """Write the pages, or with --check name those that are out of date and exit with 1."""
    stale = []
    for name, page in PAGES.items():
        path = DOCS / name
        text = page().rstrip() + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'out of date' if '--check' in sys.argv else 'written'}: {', '.join(stale)}")
    sys.exit(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    main()
