"""Tables of docs/ from figures of benchmarks: ranges over all runs, for each machine.

Files in ``tests/bench/measured`` are unchanged outputs of benchmarks with ``--json``.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

RACE = re.compile(r"(\S+) b(\d+): ([\w-]+)( / [\w-]+)?")
"""``resnet50 b8: careful``, a side of bench_gpu_peers.py, or ``resnet50 b8: edgert-rtx / careful``, a ratio."""
CAMERAS = re.compile(r"(\S+) (\S+): (?:frames of )?(\d+) cameras(?:, p99 / one camera's, run .*| lost)")
"""``yolov8s tensorrt: 8 cameras, p99 / one camera's, run 1 of 5``, or the same with ``lost`` for lost frames."""
SIDES = {
    "edgert-rtx": "edgert on TensorRT-RTX, submitted frames",
    "batch-rtx": "edgert on TensorRT-RTX, submitted batches",
    "map-rtx": "edgert on TensorRT-RTX, pipeline.map",
    "file-rtx": "edgert on TensorRT-RTX, a source in pinned memory",
    "call-rtx": "edgert on TensorRT-RTX, called",
    "edgert-ort": "edgert on ONNX Runtime, submitted frames",
    "batch-ort": "edgert on ONNX Runtime, submitted batches",
    "map-ort": "edgert on ONNX Runtime, pipeline.map",
    "file-ort": "edgert on ONNX Runtime, a source in pinned memory",
    "call-ort": "edgert on ONNX Runtime, called",
    "careful": "careful PyTorch",
    "compile": "torch.compile",
    "bare-rtx": "TensorRT-RTX's engine alone",
    "fed-rtx": "the same, and the bytes of each batch brought up",
    "bare-ort": "ONNX Runtime's engine alone",
}
"""Side of bench_gpu_peers.py → title of its row, in the order of the rows."""
Row: TypeAlias = "tuple[str, ...]"


@dataclass(frozen=True)
class Run:
    """One run of a benchmark: the GPU that it was on, and its figures as JSON."""

    gpu: str
    figures: Sequence[Mapping[str, Any]]


def runs_of(folder: Path, pattern: str) -> list[Run]:
    """Return the runs in a folder whose file names match, by name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(pattern))]
    return [Run(one["machine"]["gpu"], one["figures"]) for one in found]


def span(values: Iterable[float], digits: int = 0) -> str:
    """Return ``least–most``, one number if both look the same, or a dash without values."""
    shown = list(dict.fromkeys(f"{value:.{digits}f}" for value in sorted(values)))
    return "–" if not shown else shown[0] if len(shown) == 1 else f"{shown[0]}–{shown[-1]}"


def of_races(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the tables of bench_gpu_peers.py."""
    races = runs_of(folder, "gpu_peers-*.json")
    wanted = {
        "frames per second": ("value", 0),
        "processor time per frame": ("cpu_us", 0),
        "ratios": ("ratio", 2),
    }
    gpus = [run.gpu for run in races]
    most = [run for run in races if run.gpu == max(gpus, key=gpus.count)]  # the other runs stay in the folder
    return {name: by_gpu(most, partial(race_rows, what=what, digits=digits)) for name, (what, digits) in wanted.items()}


def of_cameras(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the table of bench_gpu_cameras.py."""
    return {"cameras": by_gpu(runs_of(folder, "gpu_cameras-*.json"), camera_rows)}


def of_zoo(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the table of bench_zoo.py: a row for each package and task, with wrong results."""
    figures = json.loads((folder / "zoo.json").read_text(encoding="utf-8"))["figures"]
    models = [one for one in figures if "package" in one["detail"]]
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in models:
        cells[one["detail"]["package"], one["detail"]["right"].replace("|", " or ")].append(one)
    rows = []
    for (package, task), found in sorted(cells.items()):
        wrong = [f"{one['name']}: {one['detail']['found']}" for one in found if not one["value"]]
        right = sum(one["value"] for one in found)
        names = ", ".join(one["name"] for one in found)
        result = f"{right:.0f} of {len(found)}" + "".join(f"; {one}" for one in wrong)
        rows.append((package, task, names, result if wrong else "all"))
    rights = sum(one["value"] for one in models)
    rows.append(("all", "", f"{len(models)} models", f"{rights:.0f} of {len(models)}"))
    return {"zoo": lines(("package", "what is right", "models", "written right"), rows)}


def of_jobs(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the tables of bench_jobs.py: a row for each job and tool, and the new environments."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("jobs*.json"))]
    rows, made = [], []
    for one in (figure for file in files for figure in file["figures"]):
        (job, who), more = one["name"].split(", "), one["detail"]
        if job == "set-up":
            made.append((who, f"{one['value']:.0f}", f"{more['megabytes']:.0f}", f"{more['load']:.0f}", str(one["n"])))
            continue
        rate = f"{more['frames/s']:.0f}" if "frames/s" in more else f"age {more['age p50 ms']:.0f} ms"
        rows.append(
            (
                job,
                who,
                str(more["lines"]),
                f"{one['value']:.1f}",
                rate,
                f"{more['start cpu s']:.1f}",
                str(more.get("objects", "–")),
                f"{more['load']:.0f}",
            )
        )
    heads = ("job", "by", "lines", "CPU ms a frame", "frames/s", "start, CPU s", "found", "load")
    environments = lines(("new environment of", "s", "MB", "load", "n"), made) if made else []
    return {"jobs": [*lines(heads, rows), *environments]}


def of_check(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the table of bench_check.py: models with a miss at the most photos, others, and all."""
    data = json.loads((folder / "check.json").read_text(encoding="utf-8"))
    counts = sorted(map(int, data["all"]))
    shares = {"right": ("true", "said"), "named": ("named", "wrong"), "new": ("new", "wrong")}
    most = str(counts[-1])
    missed = {
        name: row
        for name, row in data["models"].items()
        if any(row[most][part] < row[most]["wrong"] for part in ("named", "new"))
    }
    rest = [row for name, row in data["models"].items() if name not in missed]
    joined = {at: {part: sum(row[at][part] for row in rest) for part in data["all"][at]} for at in data["all"]}
    others = {f"{len(rest)} more": joined} if rest else {}
    rows = {**missed, **others, f"all {len(data['models'])}": data["all"]}
    named = (f"{count} photo{'' if count == 1 else 's'}: {what}" for count in counts for what in shares)
    pairs = [(str(count), *pair) for count in counts for pair in shares.values()]
    cells = [
        (name, *(f"{row[count][part]}/{row[count][whole]}" for count, part, whole in pairs))
        for name, row in rows.items()
    ]
    return {"check": lines(("model", *named), cells)}


def of_authors(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the tables of bench_decoders.py with decode_peer.py, and of bench_track.py.

    Heads whose outputs are all equal share a row, as do sequences that a tracker follows equally well.
    """
    texts = ((folder / f"{name}.json").read_text(encoding="utf-8") for name in ("decoders", "track"))
    heads, tracks = map(json.loads, texts)
    decoded, tracked = [], []
    for names in grouped(heads, lambda name: heads[name]["equal"] == heads[name]["outputs"]):
        own = [heads[name] for name in names]
        overlap = span((one["overlap"] for one in own if one["overlap"] is not None), 4)
        far = f"{max(one['far_px'] for one in own):.4f}"
        counts = f"{total(own, 'equal')}/{total(own, 'outputs')}", str(total(own, "found"))
        decoded.append((", ".join(names), *counts, far, overlap))
    by_name = {f"{one['tracker']}: {one['sequence']}": one for one in tracks["tracks"]}
    for names in grouped(by_name, lambda name: (by_name[name]["tracker"], f"{by_name[name]['idf1'] / 100:.4f}")):
        own = [by_name[name] for name in names]
        apart = span((abs(ours - theirs) for ours, theirs in (one["hota"] for one in own if one["hota"])), 2)
        sequences = ", ".join(one["sequence"] for one in own)
        idf1 = f"{own[0]['idf1'] / 100:.4f}"
        tracked.append((own[0]["tracker"], sequences, str(total(own, "detections")), idf1, apart))
    return {
        "decoders": lines(("heads", "equal outputs", "compared in them", "farthest, px", "least overlap"), decoded),
        "tracks": lines(("tracker", "sequences", "detections", "IDF1 of both", "HOTA: difference"), tracked),
    }


def grouped(names: Iterable[str], key: Callable[[str], object]) -> list[list[str]]:
    """Return names in groups of equal keys, in the order of their first."""
    found: dict[object, list[str]] = defaultdict(list)
    for name in names:
        found[key(name)].append(name)
    return list(found.values())


def of_streams(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the table of bench_stream.py: the age of images when they are seen."""
    figures = json.loads((folder / "stream.json").read_text(encoding="utf-8"))["figures"]
    rows = []
    for one in figures:
        if "p95_ms" in (detail := one["detail"]):
            late = [f"{ms:.0f} ms" for ms in (one["value"], detail["p95_ms"])]
            busy = [f"{detail[name]:g}" for name in ("shown_hz", "load")]
            rows.append((*one["name"].split(": ", 1), *late, str(one["n"]), *busy))
    return {"streams": lines(("", "seen by", "median", "95 % below", "n", "shown a second", "load"), rows)}


ATTACK = re.compile(r"(.+), ([^,]+): (memory more|memory left|friend's longest wait|friend's requests that failed)")
"""``6,000 silent, the page: memory more``, of bench_strangers.py."""


def of_strangers(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the tables of bench_strangers.py: a row for each attack, and the recorders' results."""
    figures = json.loads((folder / "strangers.json").read_text(encoding="utf-8"))["figures"]
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    others = []
    for one in figures:
        if match := ATTACK.fullmatch(one["name"]):
            digits = {"s": 2, "MiB": 1}.get(one["unit"], 0)
            row = found[match[1], match[2]]
            row[match[3]] = f"{one['value']:.{digits}f} {one['unit'] or 'of ' + str(one['n'])}"
            row |= {name: f"{value:.0f}" for name, value in one["detail"].items() if name in ("before_mib", "files")}
        else:
            others.append(
                (one["name"], f"{one['value']:.0f} of {one['n']:,}" if one["n"] > 1 else f"{one['value']:.0f}")
            )
    names = ("before_mib", "memory more", "memory left", "files", "friend's longest wait")
    names += ("friend's requests that failed",)
    rows = [(what, where, *(row[name] for name in names)) for (what, where), row in found.items()]
    heads = ("connections", "to", "MiB before", "memory more, at most", "10 s afterwards", "descriptors, at most")
    heads += names[-2:]
    return {"strangers": [*lines(heads, rows), *lines(("meanwhile", ""), others)]}


def by_gpu(runs: Sequence[Run], rows_of: Callable[[Sequence[Run]], list[Row]]) -> list[str]:
    """Return a table for each kind of GPU; the first row is its heading."""
    found = []
    for gpu in dict.fromkeys(run.gpu for run in runs):
        own = [run for run in runs if run.gpu == gpu]
        head, *rows = rows_of(own)
        found += [f"{gpu}, {len(own)} {'run' if len(own) == 1 else 'runs'}:", "", *lines(head, rows)]
    return found


def race_rows(runs: Sequence[Run], what: str, digits: int) -> list[Row]:
    """Return a row for each side or ratio (``what``), with a column for each network and batch size."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for figure in (figure for run in runs for figure in run.figures):
        match = RACE.fullmatch(figure["name"])
        if match is None or bool(match[4]) != (what == "ratio"):
            continue
        if match[4] and (match[4].startswith(" / bare") or match[3].startswith(("batch-", "file-"))):
            continue  # a page has the ratios of single frames and of map; others follow from the speeds
        found = figure["value"] if what in ("value", "ratio") else figure["detail"].get(what)
        if found is not None:
            names = [match[3], match[4][3:]] if match[4] else [match[3]]
            cells[" / ".join(SIDES[name] for name in names)][f"{match[1]}, batch {match[2]}"].append(found)
    columns = sorted({column for row in cells.values() for column in row})
    order = sorted(cells, key=lambda row: [list(SIDES.values()).index(part) for part in row.split(" / ")])
    return [("", *columns), *((row, *(span(cells[row][one], digits) for one in columns)) for row in order)]


def camera_rows(runs: Sequence[Run]) -> list[Row]:
    """Return rows with a column for each network, engine and number of cameras."""
    cells: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for figure in (figure for run in runs for figure in run.figures):
        match = CAMERAS.fullmatch(figure["name"])
        if match is None or not figure["detail"]:
            continue
        detail = {**figure["detail"]}
        cells[f"{match[1]}, {match[2]}, {match[3]} cameras"].append(detail)
        if "one_p99_ms" in detail:
            one = {name.removeprefix("one_"): value for name, value in detail.items() if name.startswith("one_")}
            cells[f"{match[1]}, {match[2]}, 1 camera"].append(one)
            detail["ratio"] = detail["p99_ms"] / detail["one_p99_ms"]
    order = sorted(cells, key=lambda name: (name.rsplit(", ", 1)[0], int(name.rsplit(" ", 2)[1])))
    columns = [cells[name] for name in order]
    return [
        ("", *order),
        ("times filmed", *(str(len(found)) for found in columns)),
        ("frames, and lost", *(f"{total(found, 'given')}, {total(found, 'lost')}" for found in columns)),
        *(
            (name, *(span((one[key] for one in found if key in one), digits) for found in columns))
            for name, key, digits in (
                ("latency, median, ms", "p50_ms", 2),
                ("latency, 99th percentile, ms", "p99_ms", 2),
                ("the same over that of one camera in the same run", "ratio", 2),
                ("processor time per frame, µs", "cpu_us", 0),
            )
        ),
    ]


def total(found: Sequence[Mapping[str, Any]], name: str) -> int:
    return round(sum(one[name] for one in found))


LEFT_OUT = re.compile(r"GPU, (network|family) left out, (\S+), (median error|90 % below)")
"""``GPU, family left out, int8, 90 % below``, of bench_costs.py."""
BOARD = re.compile(r"(\S+) (gpu|dla), left out, (median error|Spearman)")
"""``orin-nx-16gb gpu, left out, Spearman``, of the same."""
STRANGERS = re.compile(r"(GPU, .+(?:out|apart)), (median|90 % below)")
"""``GPU, two publishers of the same, apart, median``, of the same."""


def of_costs(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the tables of bench_costs.py."""
    figures = json.loads((folder / "costs.json").read_text(encoding="utf-8"))["figures"]
    left_out: dict[str, dict[str, str]] = defaultdict(lambda: defaultdict(lambda: "–"))
    boards: dict[str, dict[str, str]] = defaultdict(lambda: defaultdict(lambda: "–"))
    strangers: dict[str, dict[str, str]] = defaultdict(dict)
    for figure in figures:
        value = f"{100 * figure['value']:.1f} %"
        if match := LEFT_OUT.fullmatch(figure["name"]):
            left_out[match[2]].update({f"{match[1]} {match[3]}": value, f"{match[1]} rows": str(figure["n"])})
            left_out[match[2]].update({"networks": str(figure["detail"]["networks"])} if figure["detail"] else {})
        elif match := STRANGERS.fullmatch(figure["name"]):
            strangers[match[1]].update({"rows": str(figure["n"]), match[2]: value})
        elif match := BOARD.fullmatch(figure["name"]):
            row = boards[f"{match[1]}, {match[2].upper()}"]
            row.update({"rows": str(figure["n"]), match[3]: value})
            if match[3] == "Spearman":
                row["Spearman"] = f"{figure['value']:.3f}"
            else:
                row.update(networks=str(figure["detail"]["networks"]), p90=f"{100 * figure['detail']['p90']:.1f} %")
    sides = [(group, part) for group in ("network", "family") for part in ("rows", "median error", "90 % below")]
    return {
        "left-out": lines(
            ("", "networks", *(f"{group} left out: {part}" for group, part in sides)),
            [(name, row["networks"], *(row[f"{group} {part}"] for group, part in sides))
             for name, row in left_out.items()],
        ),
        "boards": lines(
            ("", "rows", "networks", "median error", "90 % below", "Spearman"),
            [(name, *(row[key] for key in ("rows", "networks", "median error", "p90", "Spearman")))
             for name, row in boards.items()],
        ),
        "strangers": lines(("", "n", "median", "90 % below"), [(who, *row.values()) for who, row in strangers.items()]),
    }  # fmt: skip


DECIDED = re.compile(r"decisions: (\w+), right")
"""``decisions: board, right``, of bench_decisions.py."""


def of_decisions(folder: Path) -> dict[str, list[str]]:
    """Return name → lines of the table of bench_decisions.py."""
    figures = json.loads((folder / "decisions.json").read_text(encoding="utf-8"))["figures"]
    rows = []
    for figure in figures:
        if match := DECIDED.fullmatch(figure["name"]):
            count, detail = figure["n"], figure["detail"]
            whole = [str(count), *(str(detail[key]) for key in ("networks", "ties", "told apart"))]
            shares = (figure["value"], detail["family left out"])
            rows.append((match[1], *whole, *(f"{100 * share:.1f} %" for share in shares)))
    heads = ("", "pairs", "networks", "ties", "bars apart", "right", "right, family left out")
    return {"decisions": lines(heads, rows)}


def of_bars(accuracy: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Return name → lines of the table of error bars, as the files in configs/costs have them."""
    rows = []
    for soc, kinds in accuracy.items():
        for kind, own in kinds.items():
            cells = {
                name: (str(one["rows"] or "none"), str(one["publishers"] or "none"), f"± {100 * one['bar']:.0f} %")
                for name, one in own.items()
            }
            for names in grouped(cells, cells.__getitem__):  # precisions that are equally well known share a row
                rows.append((soc, kind.upper(), ", ".join(names).upper(), *cells[names[0]]))
    return {"bars": lines(("chip", "accelerator", "precision", "rows of its own", "publishers", "bar"), rows)}


RELATION = {"mode": "another mode of the board", "board": "another board of the chip"}


def of_sisters(sisters: Mapping[str, Any], accuracy: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return name → lines of the table of predictions from measurements of related boards."""
    rows = [
        (
            whose,
            soc,
            kind.upper(),
            precision.upper(),
            f"{sisters[name]['weight'][kind]:.2f}",
            str(one["rows"]),
            str(one["models"]),
            f"{100 * one['median']:.1f} %",
            f"± {100 * one['bar']:.0f} %",
            f"± {100 * accuracy[soc][kind][precision]['bar']:.0f} %",
        )
        for name, whose in RELATION.items()
        for soc, kinds in sisters[name]["accuracy"].items()
        for kind, own in kinds.items()
        for precision, one in own.items()
    ]
    head = (
        "measured",
        "chip",
        "accelerator",
        "precision",
        "power",
        "pairs",
        "networks",
        "median error",
        "bar",
        "without",
    )
    return {"sisters": lines(head, rows)}


def lines(head: Row, rows: Iterable[Row]) -> list[str]:
    """Return a Markdown table and the empty line after it."""
    return [*(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)), ""]
