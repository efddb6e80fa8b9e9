"""Which settings are tried, and when two of them are the same."""

from edgert.config import ClassifyTask, DetectTask, InputConfig
from edgert.wiring.settings import (
    Setting,
    colors_and_scales,
    input_key,
    placements,
    setting_words,
    variants,
    with_checking_thresholds,
)

IMAGENET_BGR = {"mean": (103.53, 116.28, 123.675), "std": (57.375, 57.12, 58.395)}


def test_every_documented_scale_is_among_the_candidates_and_the_written_one_is_first() -> None:
    base = InputConfig(color="rgb", mean=(127.0,), std=(128.0,))
    tried = colors_and_scales(base, "float32")
    assert tried[0] == base
    seen = {(one.color, one.mean, one.std) for one in tried}
    assert ("bgr", IMAGENET_BGR["mean"], IMAGENET_BGR["std"]) in seen
    assert {("rgb", (0.0,), (255.0,)), ("bgr", (104.0, 117.0, 123.0), (1.0,)), ("bgr", (127.0,), (128.0,))} <= seen


def test_no_candidate_makes_the_same_input_as_another() -> None:
    tried = colors_and_scales(InputConfig(mean=(0.0, 0.0, 0.0), std=(255.0,)), "float32")
    assert len({input_key(one) for one in tried}) == len(tried)
    assert sum(one.color == "rgb" and set(one.mean) == {0.0} and one.std == (255.0,) for one in tried) == 1


def test_gray_stays_gray_and_integer_inputs_get_integer_scales() -> None:
    assert {one.color for one in colors_and_scales(InputConfig(color="gray"), "float32")} == {"gray"}
    assert len(colors_and_scales(InputConfig(), "uint8")) == 2
    assert {one.mean for one in colors_and_scales(InputConfig(mean=(128.0,)), "int8")} == {(128.0,), (0.0,)}


def test_placements_suit_the_task() -> None:
    detect = placements(InputConfig(), "detect")
    assert {(one.resize, one.anchor, one.pad) for one in detect if one.resize == "letterbox"} == {
        ("letterbox", anchor, pad) for anchor in ("center", "top_left") for pad in (114, 0)
    }
    found = {one.resize for one in placements(InputConfig(resize="center_crop"), "classify")}
    assert found == {"center_crop", "stretch"}


def test_keys_without_effect_make_no_difference() -> None:
    task = DetectTask(detect="yolox")
    first = Setting(InputConfig(resize="stretch", pad=0, anchor="top_left"), task)
    assert first.differing(Setting(InputConfig(resize="stretch"), task)) == ()
    other = Setting(InputConfig(pad=0, color="bgr"), DetectTask(detect="yolov5"))
    assert first.differing(other) == ("color", "placement", "task")


def test_a_scale_is_the_same_written_once_or_for_every_color() -> None:
    task = DetectTask(detect="yolox")
    once = Setting(InputConfig(mean=(0.0,), std=(255.0,)), task)
    thrice = Setting(InputConfig(mean=(0.0,) * 3, std=(255.0,) * 3), task)
    assert once.key == thrice.key and once.differing(thrice) == () and thrice.part("scale")["std"] == (255.0,)


def test_one_group_can_be_taken_from_another_setting() -> None:
    wrong = Setting(InputConfig(color="rgb", std=(255.0,)), DetectTask(detect="yolox"))
    right = Setting(InputConfig(color="bgr", anchor="top_left"), DetectTask(detect="yolox"))
    mixed = right.with_part("color", wrong)
    assert (mixed.input.color, mixed.input.std, mixed.input.anchor) == ("rgb", (1.0,), "top_left")
    assert mixed.differing(right) == ("color",)


def test_settings_are_named_in_a_few_words() -> None:
    setting = Setting(InputConfig(color="bgr", **IMAGENET_BGR, anchor="top_left"), DetectTask(detect="nanodet"))
    names = setting_words(setting)
    assert names == {
        "color": "bgr",
        "scale": "ImageNet",
        "placement": "letterbox top_left 114",
        "task": "detect: nanodet",
    }
    assert setting_words(Setting(InputConfig(mean=(1.0,)), DetectTask(detect="yolox")))["scale"] == "(1) / (1)"


def test_checking_has_thresholds_of_its_own_and_ssd_is_read_in_every_order() -> None:
    assert with_checking_thresholds(DetectTask(detect="ssd", score=0.9)).score == 0.25  # type: ignore[union-attr]
    ways = list(variants(DetectTask(detect="ssd", options={"background": "none", "boxes": "pixels", "order": "yxyx"})))
    assert len(ways) == 8
    assert ways[0].options["order"] == "yxyx"  # type: ignore[union-attr]
    assert [way.classify for way in variants(ClassifyTask(classify="softmax"))] == ["softmax", "auto"]  # type: ignore[union-attr]
