"""The report of ``edgert check`` as plain records."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from edgert.runtime import Record
from edgert.runtime.frame import U8
from edgert.wiring.settings import GROUPS, Setting

Verdict = Literal["fine", "wrong", "unclear"]


@dataclass(frozen=True, slots=True)
class Row:
    """Summary of the evidence for one setting.

    Attributes:
        setting: sections ``input`` and ``task`` as plain data.
        names: group of keys → the setting's values in a few words.
        written: whether the file has this setting.
        score: sum of ``answers`` and every ``memory``, by which settings are ranked.
        answers: evidence of the model's answers, 0 to 1, mean over photos.
        memory: source → fit of the input with the training statistics in the model, 0 to 1.
        found, confirmed, chance: means of :class:`~edgert.wiring.evidence.Evidence` over photos.
        behind: standard errors behind the best setting; below 2 the photos do not distinguish the two.
        same: similarity of its records to those of the best setting, 0 to 1.
        photos: number of photos it was tried on; hopeless settings get fewer.
    """

    setting: Mapping[str, Any]
    names: Mapping[str, str]
    written: bool
    score: float
    answers: float
    memory: Mapping[str, float]
    found: float
    confirmed: float
    chance: float
    behind: float
    same: float
    photos: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the pipeline file that looks wrong.

    Attributes:
        where: ``file:line key.path`` of the line, or of the section that lacks it.
        key: key path in the model's section, such as ``input.color``.
        written: line of the file as YAML; the default where the key is missing.
        missing: whether the file lacks the key.
        better: line to write instead, as YAML.
        sure: whether this line alone is clearly wrong; otherwise it is one of several that are wrong together.
        behind: standard errors that the written value costs, with all other lines right.
    """

    where: str
    key: str
    written: str
    missing: bool
    better: str
    sure: bool
    behind: float

    def __str__(self) -> str:
        problem = (
            f"is not written, which means {self.written}"
            if self.missing
            else f"{self.written} {'looks' if self.sure else 'is probably'} wrong"
        )
        return f"{self.where}: {problem}; write {self.better}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check.

    Attributes:
        model: name of the model in the pipeline file.
        photos: paths of the photos.
        verdict: ``fine``; ``wrong`` where another setting is clearly better; ``unclear`` where photos cannot decide, or
            the model finds nothing on them.
        summary: verdict in a sentence.
        findings: lines that look wrong, the costliest first.
        ties: sentences about settings that these photos cannot distinguish.
        known: source of what is declared about the model's input; empty where nothing is.
        more_photos: estimated number of further photos that decide it; None where photos cannot.
        rows: all tried settings, the best first.
        runs: number of runs of the engine.
        best: best setting; not part of the JSON.
        written: setting of the file; not part of the JSON.
        record: record of the first photo with the best setting; not part of the JSON.
        image: first photo, (h, w, 3) uint8 BGR; not part of the JSON.
        metric: metric by which labeled images rank settings; empty for photos.
    """

    model: str
    photos: tuple[str, ...]
    verdict: Verdict
    summary: str
    findings: tuple[Finding, ...]
    ties: tuple[str, ...]
    known: str
    more_photos: int | None
    rows: tuple[Row, ...]
    runs: int
    best: Setting
    written: Setting
    record: Record
    image: U8
    metric: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        names = ("model", "photos", "verdict", "summary", "ties", "known", "more_photos", "runs", "metric")
        lists = {"findings": [asdict(one) for one in self.findings], "rows": [asdict(one) for one in self.rows]}
        return {**{name: _to_json(getattr(self, name)) for name in names}, **_to_json(lists)}


def yaml_value(value: object) -> str:
    """Return a value as YAML of a pipeline file."""
    if isinstance(value, (tuple, list)):
        return yaml_value(value[0]) if len(value) == 1 else f"[{', '.join(map(yaml_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {yaml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, (bool, Path)):
        return json.dumps(str(value)) if isinstance(value, Path) else str(value).lower()
    return str(value)


def setting_json(setting: Setting) -> dict[str, Any]:
    """Return a setting as the sections ``input`` and ``task``, without keys that have no effect."""
    parts = {key: value for group in GROUPS for key, value in setting.part(group).items()}
    order = ("resize", "anchor", "pad", "crop", "color", "mean", "std")
    return {
        "input": {key: _to_json(parts[key]) for key in order if key in parts},
        "task": _to_json(setting.part("task")),
    }


def _to_json(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return (
            _to_json(value[0])
            if len(value) == 1 and isinstance(value[0], float)
            else [_to_json(item) for item in value]
        )
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    return round(value, 6) if isinstance(value, float) else value
