"""How often ``edgert check`` is right: every model with real weights whose preprocessing is documented.

Each trial draws photos at random from a pool and asks of a pipeline file wired as documented, and of one with a single
thing wrong: the color order, the scale, the placement or the way its outputs are read. A wrong setting that changes
nothing (its answers on the whole pool are those of the right one, to 90 %) counts as right. Answers are remembered
from one check to the next, so a hundred checks cost what a few cost. Per model and number of photos:

* right: of all files that are called right, the share that is ("right" must be right); with how often it is said
* named: of files with something wrong, the share that is called wrong with the line that is
* blamed: of files wired as documented, the share that is called wrong
* open: of all files, the share where the answer is that more photos are needed
* new: of files that ``edgert new`` would write from these photos, the share whose answers are the documented ones'

EDGERT_EXPORTS names a folder of models that packages ship (see check_models). --json goes on with the file's other
models. Large networks take long: a minute for 30 ms of the network, 12 trials and a pool of 20.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from edgert.config import load_pipeline
from edgert.wiring import check as checking, photos as photographs, search as searching
from edgert.wiring.check_report import CheckReport, setting_json, yaml_value
from edgert.wiring.evidence import record_similarity
from edgert.wiring.settings import GROUPS, SCALES, Setting, colors_and_scales, placements
from edgert.wiring.trial import readings
from tests.bench.check_models import DATA, FOLDERS, MODELS, SHOWN, images, model_file

_SAME = 0.9
"""Sameness of answers from which on a setting is as good as another."""


def pipeline_text(model: str, task: str, recipe: str) -> str:
    return (
        f"models:\n  net:\n    onnx: {model_file(model)}\n    task: {{{task}}}\n    input: {{{recipe}}}\n"
        'stages:\n  camera: {source: api}\n  see: {infer: net, from: camera}\n  out: {sink: "null", from: see}\n'
    )


class Remembered:
    """Stands in for the parts of a check that take time, and remembers what they returned."""

    def __init__(self) -> None:
        self.subjects: dict[Any, Any] = {}
        self.images: dict[Any, Any] = {}
        self.views: dict[Any, Any] = {}
        self.seen: dict[Any, Any] = {}

    def patched(self) -> Iterator[Any]:
        see, subject, read = searching.Search._see, searching.load_subject, photographs.read_photos
        scrambled, with_views = photographs.scramble_phase, photographs.make_photo

        def remembered_subject(config: Any, labels: Any, where: Any) -> Any:
            key = (config.onnx, config.input.size)
            if key not in self.subjects:
                self.subjects[key] = subject(config, labels, where)
            return self.subjects[key]

        def remembered_photos(paths: Any) -> Any:
            for path in paths:
                if path not in self.images:
                    self.images[path] = read([path])[0]
            return [self.images[path] for path in paths]

        def views_of(path: Path, image: Any, verb: str) -> Any:
            if (path, verb) not in self.views:
                self.views[path, verb] = with_views(path, image, scrambled(image), verb)
            return self.views[path, verb]

        def remembered_see(search: Any, tally: Any, number: int, photo: Any) -> None:
            key = (search.photos[number][0], tally.setting.key)
            if key not in self.seen:
                see(search, tally, number, views_of(*photo))
                self.seen[key] = tally.evidence[number], tally.records[number], tally.looks[number]
            tally.evidence[number], tally.records[number], tally.looks[number] = self.seen[key]

        yield mock.patch.object(searching.Search, "_see", remembered_see)
        yield mock.patch.object(searching, "make_photo", lambda path, image, _, verb: (path, image, verb))
        yield mock.patch.object(searching, "scramble_phase", lambda image: image)  # made with a new view
        yield mock.patch.object(checking, "load_subject", remembered_subject)
        yield mock.patch.object(checking, "read_photos", remembered_photos)

    def records(self, subject: Any, setting: Setting, paths: list[Path]) -> list[Any]:
        """What a setting found on photos, running it where it was not."""
        search = searching.Search(subject, [self.images[path] for path in paths], next(iter(setting.part("task"))))
        search.gather([setting], keep_all=True)
        return [search.ranking.add(setting).records[n] for n in range(len(paths))]


def wrong_settings(right: Setting, subject: Any) -> list[tuple[str, Setting]]:
    """Files with one thing wrong: the group, and the whole setting."""
    turned = {"rgb": "bgr", "bgr": "rgb"}.get(right.input.color, "gray")
    found = [("color", Setting(right.input.model_copy(update={"color": turned}), right.task))]
    for one in colors_and_scales(right.input, subject.dtype):
        if one.color == right.input.color and not _same_scale(one, right.input) and _is_usual(one):
            found.append(("scale", Setting(one, right.task)))
    verb = next(iter(right.part("task")))
    for one in placements(right.input, verb)[1:]:
        found.append(("placement", Setting(one, right.task)))
    for task in readings(right.task, subject.engine, (), subject.network)[1:]:
        found.append(("task", Setting(right.input, task)))
    return found


def _is_usual(config: Any) -> bool:
    """Whether it is a scale that people write, in the order of its colors."""
    scales = [tuple(tuple(part[::-1] if config.color == "bgr" else part) for part in one) for one in SCALES.values()]
    return (tuple(config.mean), tuple(config.std)) in scales


def _same_scale(one: Any, other: Any) -> bool:
    """Whether two make values within 1 % of their range of each other (127/128 for 127.5)."""
    ends = []
    for config in (one, other):
        mean, std = (np.broadcast_to(np.asarray(getattr(config, key), float), 3) for key in ("mean", "std"))
        ends.append(np.stack([(0 - mean) / std, (255 - mean) / std]))
    return bool(np.abs(ends[0] - ends[1]).max() <= 0.01 * np.ptp(ends[1], axis=0).max())


def _text_of(model: str, setting: Setting, recipe: str) -> str:
    parts = setting_json(setting)
    options = parts["task"].pop("options", None)
    task = yaml_value({**parts["task"], **({"options": options} if options else {})})[1:-1]
    kept = {key: str(getattr(setting.input, key)) for key in ("interpolation",)}
    size = next((part for part in recipe.split(", ") if part.startswith("size")), "")
    return pipeline_text(model, task, ", ".join(filter(None, [size, yaml_value({**parts["input"], **kept})[1:-1]])))


def _names(report: CheckReport, group: str) -> bool:
    keys = {f"input.{key}" for key in GROUPS.get(group, ())}
    return any(item.key in keys or (group == "task" and item.key.startswith("task")) for item in report.findings)


def measure(model: str, counts: list[int], trials: int, pool_size: int, memory: Remembered) -> dict[int, Any]:
    from contextlib import ExitStack

    task, recipe, kind = MODELS[model]
    every = images(SHOWN.get(model, kind))
    pool = [every[n] for n in np.linspace(0, len(every) - 1, min(pool_size, len(every))).astype(int)]
    results: dict[int, Any] = {}
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    with ExitStack() as stack:
        for patch in memory.patched():
            stack.enter_context(patch)

        def ask(text: str, photos: list[Path]) -> CheckReport:
            path = folder / f"bench_check_{os.getpid()}.yaml"
            path.write_text(text)
            try:
                return checking.check(load_pipeline(path, ["models.net.threads=1"]), photos)
            finally:
                path.unlink()

        right = ask(pipeline_text(model, task, recipe), pool).written
        subject = next(iter(memory.subjects.values()))
        own = memory.records(subject, right, pool)

        def as_good(setting: Setting) -> bool:
            records = memory.records(subject, setting, pool)
            return float(np.mean([record_similarity(*pair) for pair in zip(own, records, strict=True)])) >= _SAME

        wrong = [(group, setting) for group, setting in wrong_settings(right, subject) if not as_good(setting)]
        for count in counts:
            rng = np.random.default_rng(count)
            tally = dict.fromkeys(("said", "true", "wrong", "named", "documented", "blamed", "open", "asked", "new"), 0)
            missed: dict[str, int] = {}
            for trial in range(trials):
                photos = [pool[n] for n in rng.choice(len(pool), count, replace=False)]
                group, setting = wrong[trial % len(wrong)] if wrong else ("", right)
                for is_right, text in (
                    (True, pipeline_text(model, task, recipe)),
                    (False, _text_of(model, setting, recipe)),
                ):
                    if not is_right and not wrong:
                        continue
                    report = ask(text, photos)
                    tally["asked"] += 1
                    tally["said"] += report.verdict == "fine"
                    tally["open"] += report.verdict == "unclear"
                    tally["true"] += report.verdict == "fine" and is_right
                    tally["documented"] += is_right
                    tally["blamed"] += report.verdict == "wrong" and is_right
                    if is_right:
                        continue
                    tally["wrong"] += 1
                    named = report.verdict == "wrong" and _names(report, group)
                    tally["named"] += named
                    tally["new"] += as_good(report.best)
                    if not named:
                        key = f"{group} {report.verdict} {yaml_value(setting_json(setting)['input'])}"
                        missed[key] = missed.get(key, 0) + 1
            results[count] = {**tally, "missed": missed}
    return results


def _share(part: int, whole: int) -> str:
    return f"{part / whole:>8.3f}" if whole else f"{'-':>8}"


def line(row: dict[str, Any]) -> str:
    pairs = (("true", "said"), ("said", "asked"), ("named", "wrong"), ("blamed", "documented"), ("open", "asked"))
    return "".join(_share(row[part], row[whole]) for part, whole in (*pairs, ("new", "wrong")))


def held(file: Path | None) -> dict[str, Any]:
    known = json.loads(file.read_text())["models"] if file is not None and file.is_file() else {}
    return {model: {int(count): row for count, row in rows.items()} for model, rows in known.items()}


def summed(results: dict[str, Any]) -> dict[int, dict[str, int]]:
    totals: dict[int, dict[str, int]] = {}
    for count, row in (pair for rows in results.values() for pair in rows.items()):
        own = totals.setdefault(count, {})
        for key, value in row.items():
            if isinstance(value, int):
                own[key] = own.get(key, 0) + value
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--photos", default="1,4,16")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--pool", type=int, default=24)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit("needs the evaluation data; set EDGERT_DATA to the folder that has them")
    counts = [int(count) for count in options.photos.split(",")]
    results: dict[str, Any] = held(options.json)
    headings = ("right", "said", "named", "blamed", "open", "new")
    print(f"{'model':<32}{'photos':>7}{''.join(f'{name:>8}' for name in headings)}{'checks':>8}")
    for model in options.models.split(","):
        if not model_file(model).is_file():
            print(f"{model:<32} is not in {', '.join(map(str, FOLDERS))}")
            continue
        results[model] = measure(model, counts, options.trials, options.pool, Remembered())
        for count, row in results[model].items():
            print(f"{model:<32}{count:>7}{line(row)}{row['asked']:>8}", flush=True)
        if options.json:  # after every model: a run that is ended early keeps what it has
            options.json.write_text(json.dumps({"models": results, "all": summed(results)}, indent=2) + "\n")
    for count, row in summed(results).items():
        print(f"{'all':<32}{count:>7}{line(row)}{row['asked']:>8}")


if __name__ == "__main__":
    main()
