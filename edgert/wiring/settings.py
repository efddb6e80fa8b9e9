"""Plausible settings of a model: how images become its input, and how its outputs are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, get_args, get_type_hints

import numpy as np

from edgert.config import ClassifyTask, DetectTask, InputConfig, KeypointsTask, TaskConfig
from edgert.config.model_section import value_of, verb_of
from edgert.kinds import DECODERS

IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Red, green, blue: (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225) of https://pytorch.org/vision/stable/models.html,
times 255."""
SCALES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "0 to 255": ((0.0,), (1.0,)),
    "0 to 1": ((0.0,), (255.0,)),
    "-1 to 1": ((127.5,), (127.5,)),
    "ImageNet": (IMAGENET_MEAN, IMAGENET_STD),
    "Caffe mean": ((123.0, 117.0, 104.0), (1.0,)),
}
"""Name of a scale → mean and std, each one value or red, green, blue."""
_INTEGER_SCALES = {
    "uint8": {"0 to 255": ((0.0,), (1.0,))},
    "int8": {"-128 to 127": ((128.0,), (1.0,)), "halved": ((0.0,), (2.0,))},
    "int32": {"0 to 255": ((0.0,), (1.0,))},
}

GROUPS: dict[str, tuple[str, ...]] = {
    "color": ("color",),
    "scale": ("mean", "std"),
    "placement": ("resize", "anchor", "pad", "crop"),
}
"""Groups of keys of ``input:`` that are changed together."""
CHECK_SCORE = 0.25
"""Lowest score of an answer in a check, whatever the file has."""
_CHECK_LIMIT = 100


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """One setting of a model: how images become its input, and how its outputs are read."""

    input: InputConfig
    task: TaskConfig

    @property
    def key(self) -> str:
        """Text that is equal for settings with the same meaning."""
        scale = {key: _shorten(getattr(self.input, key)) for key in GROUPS["scale"]}
        return f"{self.input.model_copy(update=scale)!r} {self.task!r}"

    def differing(self, other: Setting) -> tuple[str, ...]:
        """Return the names of the groups in which two settings differ: keys of :data:`GROUPS`, and ``task``."""
        groups = tuple(name for name in GROUPS if self.part(name) != other.part(name))
        return groups if self.part("task") == other.part("task") else (*groups, "task")

    def part(self, group: str) -> dict[str, Any]:
        """Return the keys and values of a group, without keys that have no effect."""
        if group == "task":
            options = getattr(self.task, "options", {})
            return {verb_of(self.task): value_of(self.task), **({"options": options} if options else {})}
        values = {key: getattr(self.input, key) for key in GROUPS[group]}
        if group == "scale":
            values = {key: _shorten(value) for key, value in values.items()}
        return {key: value for key, value in values.items() if _has_effect(key, self.input)}

    def with_part(self, group: str, other: Setting) -> Setting:
        """Return this setting with a group of another one."""
        if group == "task":
            return replace(self, task=other.task)
        taken = {key: getattr(other.input, key) for key in GROUPS[group]}
        if "color" in taken and (taken["color"] == "gray") != (self.input.color == "gray"):
            taken |= {"mean": other.input.mean, "std": other.input.std}
        return replace(self, input=self.input.model_copy(update=taken))


_SCALE_TOLERANCE = 0.01
"""Relative difference below which two scales are the same: 127 and 128 for 127.5."""


def differs(first: Setting, second: Setting, group: str) -> bool:
    """Return whether two settings differ in a group; scales are compared for red, green and blue, in any order."""
    if group != "scale":
        return first.part(group) != second.part(group)
    ends = []
    for config in (first.input, second.input):
        values = [np.broadcast_to(np.asarray(value, float), 3) for value in (config.mean, config.std)]
        mean, std = (value[::-1] if config.color == "bgr" else value for value in values)
        ends.append(np.stack([(0 - mean) / std, (255 - mean) / std]))
    return bool(np.abs(ends[0] - ends[1]).max() > _SCALE_TOLERANCE * np.ptp(ends[0], axis=0).max())


def setting_words(setting: Setting) -> dict[str, str]:
    """Return group → its values in words: ``{"color": "bgr", "scale": "0 to 255", "placement": "stretch", ...}``."""
    one, (verb, value) = setting.input, next(iter(setting.part("task").items()))
    words = {"letterbox": f"{one.resize} {one.anchor} {one.pad}", "center_crop": f"{one.resize} {one.crop:g}"}
    options = getattr(setting.task, "options", {})
    task = " ".join([f"{verb}: {value}", *(f"{key}={item}" for key, item in options.items())])
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (one.mean, one.std))
    scales = {**_INTEGER_SCALES["int8"], **SCALES}.items()
    same = (
        name for name, scale in scales if input_key(_with_color_and_scale(one, one.color, *scale)) == input_key(one)
    )
    scale = next(same, f"({mean}) / ({std})")
    return {"color": one.color, "scale": scale, "placement": words.get(one.resize, one.resize), "task": task}


def colors_and_scales(base: InputConfig, dtype: str) -> list[InputConfig]:
    """Return inputs with every color order and scale, and the placement of ``base``; ``base`` itself comes first."""
    scales = _INTEGER_SCALES.get(dtype, SCALES).values()
    colors = ("gray",) if base.color == "gray" else ("rgb", "bgr")
    made = [_with_color_and_scale(base, color, *scale) for scale in scales for color in colors]
    own = [base.model_copy(update={"color": color}) for color in colors]
    turned = [one.model_copy(update={"mean": one.mean[::-1], "std": one.std[::-1]}) for one in own[1:]]
    return _distinct([base, *own, *turned, *made])


def _with_color_and_scale(base: InputConfig, color: str, mean: Sequence[float], std: Sequence[float]) -> InputConfig:
    if color == "gray":
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    ordered = {"mean": tuple(mean), "std": tuple(std)} if color != "bgr" else {"mean": mean[::-1], "std": std[::-1]}
    return base.model_copy(update={"color": color, **ordered})


def placements(base: InputConfig, verb: str) -> list[InputConfig]:
    """Return inputs with every plausible placement, and color and scale of ``base``; ``base`` itself comes first."""
    ways: list[dict[str, object]] = [{"resize": "stretch"}]
    if verb in ("classify", "embed"):
        ways += [{"resize": "center_crop", "crop": 0.875}, {"resize": "center_crop", "crop": 1.0}]
    if verb != "classify":
        anchors = ("center", "top_left") if verb in ("detect", "keypoints") else ("center",)
        ways += [{"resize": "letterbox", "anchor": anchor, "pad": pad} for anchor in anchors for pad in (114, 0)]
    return _distinct([base, *(base.model_copy(update=way) for way in ways)])


def has_crossed_means(config: InputConfig) -> bool:
    """Return whether red has the usual mean of blue, and blue that of red."""
    means = config.mean if config.color == "bgr" else config.mean[::-1]
    return any(
        len(set(usual)) > 1 and np.allclose(means, usual, atol=1)
        for usual, _ in SCALES.values()
        if len(usual) == len(means)
    )


def input_key(config: InputConfig) -> tuple[object, ...]:
    """Return a key that is equal for input sections with the same effect on every image."""
    keys = ("resize", "anchor", "pad", "crop", "interpolation", "color")
    values = tuple(getattr(config, key) if _has_effect(key, config) else None for key in keys)
    channels = 1 if config.color == "gray" else 3
    mean, std = (value * channels if len(value) == 1 else value for value in (config.mean, config.std))
    return (*values, mean, std)


def with_checking_thresholds(task: TaskConfig) -> TaskConfig:
    """Return a task with the thresholds of a check."""
    if isinstance(task, (DetectTask, KeypointsTask)):
        return task.model_copy(update={"score": CHECK_SCORE, "iou": 0.5, "limit": _CHECK_LIMIT})
    if isinstance(task, ClassifyTask):
        return task.model_copy(update={"top": 1_000_000})
    return task


def variants(task: TaskConfig) -> Iterator[TaskConfig]:
    """Yield a task, then the variants of its decoder that can read the same outputs."""
    yield task
    if isinstance(task, ClassifyTask) and task.classify != "auto":
        yield task.model_copy(update={"classify": "auto"})
    if isinstance(task, DetectTask):
        decoder = DECODERS["detect"].get(task.detect)
        types = get_type_hints(decoder)
        values = [get_args(types[name]) for name in decoder.uncertain]  # options that shapes do not decide
        for chosen in product(*values) if values else ():
            merged = {**task.options, **dict(zip(decoder.uncertain, chosen, strict=True))}
            if merged != task.options:
                yield task.model_copy(update={"options": merged})


def _shorten(values: tuple[float, ...]) -> tuple[float, ...]:
    """Return a single value where all channels have the same."""
    return values[:1] if len(set(values)) == 1 else values


def _has_effect(key: str, config: InputConfig) -> bool:
    needs = {"anchor": "letterbox", "pad": "letterbox", "crop": "center_crop"}
    return key not in needs or config.resize == needs[key]


def _distinct(configs: Sequence[InputConfig]) -> list[InputConfig]:
    """Return the input sections with different effects, the first of equal ones."""
    return list({input_key(config): config for config in reversed(configs)}.values())[::-1]
