"""When clips begin and end, and which packets one may begin with: decisions alone."""

from fractions import Fraction

from edgert.stages.sink.record.clips import Clips, ClipsSection, History
from edgert.stages.source.packets import Format, Sample
from edgert.stages.zones.rules import Event, Phase

S = 10**9
FORMAT = Format("h264", Fraction(1, 90_000), (), None)
KEYS = {"before": "5s", "after": "3s", "longest": "60s"}
FAR = 1000 * S


def event(name: str, phase: Phase = "begin", seconds: float = 0.0, **more: str) -> Event:
    return Event(name, more.get("rule", "intruder"), phase, "cam", 0, seconds, way=more.get("way", ""))


def history(seconds: int, *, gop: int = 2, keep_s: int = FAR // S, limit: int = 1 << 30, nbytes: int = 100) -> History:
    """A packet a second, each ``gop``-th a keyframe."""
    made = History(keep_s * S, limit)
    for at in range(seconds):
        made.add([Sample(b"", nbytes, at, at, 1, at % gop == 0, at * S, at * S, FORMAT)])
        made.trim(at * S)
    return made


def numbers(made: History) -> list[int]:
    return [sample.pts for _, sample in made.since(0)]


def test_a_clip_begins_with_the_keyframe_at_or_before_the_pre_roll() -> None:
    made = history(20, gop=4)
    assert [made.start(at * S) for at in (7, 8, 9, 11, 12)] == [4, 8, 8, 8, 12]
    assert made.start(-5 * S) == 0
    assert [number for number, _ in made.since(17)] == [17, 18, 19]


def test_what_comes_before_the_first_keyframe_is_left_out() -> None:
    made = History(FAR, 1 << 30)
    made.add(Sample(b"", 1, at, at, 1, at == 3, at, at, FORMAT) for at in range(5))
    assert numbers(made) == [3, 4] and made.newest_ns == 4


def test_old_packets_go_up_to_the_keyframe_that_is_still_needed() -> None:
    made = history(21, gop=4, keep_s=10)  # at 20: what is needed begins at 10, and 8 is the keyframe before
    assert numbers(made) == list(range(8, 21)) and not made.is_short
    assert made.start(10 * S) == 8
    assert [number for number, _ in made.since(3)] == list(range(8, 21))


def test_they_never_take_more_than_the_memory() -> None:
    made = history(20, gop=4, limit=900)
    assert numbers(made) == list(range(12, 20)) and made.is_short and made.seconds == 7.0


def test_keyframes_that_are_too_rare_for_the_memory() -> None:
    made = history(15, gop=10, limit=300)
    assert made.is_short and numbers(made) == []
    made.add([Sample(b"", 100, 20, 20, 1, True, 20 * S, 0, FORMAT)])
    assert numbers(made) == [20] and made.start(0) == 8  # numbers go on


def test_an_event_has_its_pre_roll_and_its_post_roll() -> None:
    clips = Clips(ClipsSection.model_validate(KEYS))
    clips.take(event("a", seconds=2.0), 20 * S)  # reported two seconds after it began
    assert clips.clip is not None and clips.clip.begin_ns == 13 * S
    assert clips.clip.end_ns(20 * S) == 23 * S and clips.clip.end_ns(40 * S) == 40 * S  # it lasts
    clips.take(event("a", "end", seconds=25.0), 44 * S)  # it ended at 43
    assert clips.clip.end_ns(FAR) == 46 * S
    assert not clips.end_over(newest_ns=FAR, known_ns=46 * S) and not clips.end_over(newest_ns=46 * S, known_ns=FAR)
    assert clips.end_over(newest_ns=47 * S, known_ns=47 * S) and clips.clip is None


def test_events_that_overlap_share_a_clip() -> None:
    clips = Clips(ClipsSection.model_validate(KEYS))
    clips.take(event("a"), 20 * S)
    clips.take(event("a", "end", seconds=1.0), 22 * S)
    clips.take(event("b", way="in"), 23 * S)  # crosses a line: it has no end
    assert clips.clip is not None and [one.id for one in clips.clip.events] == ["a", "b"]
    assert clips.clip.begin_ns == 15 * S and clips.clip.end_ns(FAR) == 26 * S


def test_an_event_that_goes_on_and_on_has_the_longest_clip_and_no_other() -> None:
    clips = Clips(ClipsSection.model_validate(KEYS))
    clips.take(event("a"), 20 * S)
    assert clips.clip is not None and clips.clip.end_ns(FAR) == 75 * S
    assert clips.end_over(FAR, 76 * S)
    clips.take(event("a", "update", seconds=80.0), 100 * S)
    clips.take(event("a", "end", seconds=90.0), 110 * S)
    assert clips.clip is None
    clips.take(event("b"), 111 * S)
    assert clips.clip is not None and clips.clip.begin_ns == 106 * S


def test_one_that_is_reported_late_begins_as_far_back_as_packets_are_kept() -> None:
    clips = Clips(ClipsSection.model_validate(KEYS))
    clips.take(event("a", seconds=600.0), 700 * S)  # absent: 10m
    assert clips.clip is not None and clips.clip.begin_ns == 685 * S


def test_other_rules_make_no_clip() -> None:
    clips = Clips(ClipsSection.model_validate({**KEYS, "rules": "delivery"}))
    clips.take(event("a"), 20 * S)
    assert clips.clip is None
    clips.take(event("b", rule="delivery"), 20 * S)
    assert clips.clip is not None
