"""The live page in a real browser: the wall, one camera, zones drawn and applied, events, keys, phones."""

import math
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from edgert import Pipeline
from edgert.config import SinkStage
from edgert.config.stages import SourceStage
from edgert.stages.context import Context, make_stage
from edgert.stages.sink.web.http_sink import HttpSink
from edgert.stages.source.kinds import source_for
from edgert.stages.zones.areas import ZonesSection
from edgert.stages.zones.rules import Event, Events
from tests.helpers.browser import Page, axe
from tests.helpers.clips import SIZE, write_clip
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.http_request import live_page
from tests.helpers.waiting import wait_until
from tests.helpers.written import opened

pytestmark = pytest.mark.slow
CAMERAS = ("gate", "yard", "dock")
_S = 30.0


def stats() -> dict[str, Any]:
    up = {"up": True, "state_s": 9.0, "frame_age_s": 0.1, "reason": ""}
    stages = {name: {"results_out": 1, "source": up} for name in CAMERAS}
    lost = {"results_out": 1, "source": {**up, "up": False, "reason": "<b>no route</b>"}}
    return {"name": "north & <dock>", "frames_out": 9, "dropped": 0, "stages": {**stages, "roof": lost, "find": {}}}


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    with opened(live_page(stats)) as sink:
        for number, name in enumerate(CAMERAS):
            image = np.full((90, 160, 3), 40 + 80 * number, np.uint8)
            result = result_of(frame_of(160, 90, stream=name), {"find": detections((40, 20, 80, 60), ids=(4,))})
            event = Event(
                "ab12", "intruder", "begin", "gate", 10**18, 3.0, "lane", "", 4, "person", 0.9, (40, 20, 80, 60)
            )
            sink.process(replace(result.with_output("alarm", Events((event,) if name == "gate" else ())), image=image))
        yield sink


def wait_for(page: Page, expression: str, wanted: object = True) -> None:
    with suppress(AssertionError):
        wait_until(lambda: page.evaluate(expression) == wanted, _S)
    assert page.evaluate(expression) == wanted, expression


def middle_of(page: Page, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
    box = page.evaluate(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
    return box["left"] + across * box["width"], box["top"] + down * box["height"]


def rename(page: Page, name: str) -> None:
    label = "document.querySelector('#label')"
    page.evaluate(f"{label}.value = '{name}', {label}.dispatchEvent(new Event('input'))")


SHADE = """(canvas => {
  const one = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  one.drawImage(canvas, 0, 0, 1, 1);
  return one.getImageData(0, 0, 1, 1).data[1];
})(document.querySelectorAll(".tile canvas")[%d])"""


@pytest.mark.parametrize(("width_px", "dark"), [(1440, False), (1440, True), (390, False), (390, True)])
def test_every_camera_by_itself_and_nothing_sideways(page: Page, sink: HttpSink, width_px: int, dark: bool) -> None:
    page.open(sink.url, width_px, dark=dark)
    wait_for(
        page, "[...document.querySelectorAll('.tile b')].map(one => one.textContent).join()", "gate,yard,dock,roof"
    )
    for number in range(len(CAMERAS)):
        wait_for(page, f"Math.abs({SHADE % number} - {40 + 80 * number}) < 4")
    lost = "[...document.querySelectorAll('.tile')[3].querySelectorAll('.lost span')].map(one => one.textContent)"
    who, since, why = page.evaluate(lost)
    assert (who, since[:6], why) == ("roof is down", "since ", "<b>no route</b>")
    wait_for(page, "document.querySelector('#events img')?.naturalWidth", 320)
    assert page.evaluate("[document.title, document.querySelector('h1').textContent]") == [
        "north & <dock> · edgert",
        "north & <dock>",
    ]
    assert page.evaluate("document.documentElement.scrollWidth") == width_px
    light = page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(",")
    assert (sum(map(int, light)) < 200) == dark
    assert page.errors == [] and all(one.startswith((sink.url, "data:")) for one in page.requests)


def test_cameras_are_called_what_is_written_on_them_and_those_without_an_image_say_so(
    page: Page, sink: HttpSink
) -> None:
    page.open(sink.url, 1200)
    wait_for(page, "document.querySelectorAll('.tile.seen').length", 3)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    called = {node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "button"}
    assert {*CAMERAS} <= called, "without a rate, which would be read aloud at every change"
    assert any(name.startswith("roof is down since ") and "<b>no route</b>" in name for name in called), called
    hidden = "getComputedStyle(document.querySelectorAll('.lost')[%d]).display == 'none'"
    assert [page.evaluate(hidden % number) for number in (0, 3)] == [True, False]
    page.evaluate("location.hash = '#roof'")
    wait_for(page, "document.querySelector('#none').lastChild?.innerText", "<b>no route</b>")
    assert page.evaluate("document.querySelector('#rows').hidden"), "the objects of another camera"
    page.evaluate("location.hash = '#yard'")
    wait_for(page, "document.querySelector('#none').hidden")


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(None, "– ms"), (0.25, "0.3 ms"), (842.4, "842 ms"), (1000, "1.0 s"), (12232, "12.2 s"), (100001, "100 s")],
)
def test_long_times_are_shown_in_seconds(page: Page, sink: HttpSink, ms: float | None, shown: str) -> None:
    page.open(sink.url, 1200)
    assert page.evaluate(f"lasting({'undefined' if ms is None else ms}).join(' ')") == shown


@pytest.mark.parametrize(
    ("medians", "state"),
    [
        ([900, 3000], "waiting: 3.0 s late, growing"),
        ([12000, 12100], "live: live"),
        ([100, 900], "live: live"),
        ([9000, 5000], "live: live"),
        ([5000], "live: live"),
    ],
)
def test_the_page_says_when_results_come_ever_later(
    page: Page, sink: HttpSink, medians: list[float], state: str
) -> None:
    page.open(sink.url, 1200)
    page.evaluate("poll = update = () => undefined, medians.length = 0")
    for number, median in enumerate(medians):
        page.evaluate(f"noteLatency({median}, {20000 * number})")
    # In one expression: an answer that was asked for before may still come.
    shown = page.evaluate("judge({stages: {}}, true), `${at('state').className}: ${at('state').textContent}`")
    assert shown == state


def test_one_camera_large_by_click_and_by_keys(page: Page, sink: HttpSink) -> None:
    page.open(sink.url, 1200)
    wait_for(page, "document.querySelectorAll('.tile').length", 4)
    page.click(*middle_of(page, ".tile:nth-child(2)"))
    wait_for(page, "document.querySelector('#name').textContent", "yard")
    wait_for(page, "document.querySelector('#view img').naturalWidth", 160)
    assert page.evaluate("document.querySelector('#wall').hidden")
    page.press("ArrowRight")
    wait_for(page, "document.querySelector('#name').textContent", "dock")
    page.press("Escape")
    wait_for(page, "document.querySelector('#wall').hidden", False)
    page.press("ArrowLeft")
    assert "yard" in page.evaluate("document.activeElement.textContent")
    assert page.errors == []


def press_enter(page: Page) -> None:
    """Presses Enter as a keyboard does, so that the button in focus is pressed."""
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13, text="\r")
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", windowsVirtualKeyCode=13)


def test_focus_goes_to_the_large_camera_and_comes_back_to_its_tile(page: Page, sink: HttpSink) -> None:
    page.open(sink.url, 1200)
    wait_for(page, "document.querySelectorAll('.tile').length", 4)
    page.evaluate("document.querySelectorAll('.tile')[2].focus()")
    press_enter(page)
    wait_for(page, "document.activeElement.id", "back")
    assert page.evaluate("[at('name').textContent, at('said').lastChild.textContent]") == ["dock", "dock, alone"]
    page.press("Escape")
    wait_for(page, "document.activeElement.querySelector('b')?.textContent", "dock")


def test_screen_readers_hear_what_changes_once(page: Page, sink: HttpSink) -> None:
    page.open(sink.url, 1200)
    wait_for(page, "at('said').textContent", "down: roof")
    live = "[...document.querySelectorAll('[role=status], [role=log], [aria-live]')].map(one => one.id).sort().join()"
    assert page.evaluate(live) == "done,said,wrong"
    page.evaluate(
        "window.heard = 0, new MutationObserver(all => { heard += all.length; })"
        ".observe(at('said'), {childList: true, characterData: true, subtree: true})"
    )
    page.evaluate("window.polled = 0, window.real = showState, showState = (...all) => { polled += 1; real(...all); }")
    wait_for(page, "polled >= 4")
    assert page.evaluate("heard") == 0
    page.evaluate("polled = 0, say('1 new, intruder on gate')")
    wait_for(page, "polled >= 2")
    assert page.evaluate("heard") == 1, "the state is not repeated after it"


def test_every_row_of_the_wall_is_full_and_a_desk_sees_all_of_it(page: Page) -> None:
    """The bottom of the wall; and for each row, how far it is from the wall's edges."""
    rows = """(wall => Object.values(Object.groupBy([...wall.children], one => Math.round(one.offsetTop)))
      .map(row => wall.clientWidth - row.reduce((all, one) => all + one.offsetWidth, 12 * (row.length - 1)))
    )(at('wall'))"""
    for count in (2, 3, 4, 5, 8, 16):
        names = [f"camera-{number}" for number in range(count)]
        stages = {name: {"source": {"up": False, "state_s": 5.0, "reason": "no route"}} for name in names}
        with opened(live_page(lambda stages=stages: {**stats(), "stages": stages})) as sink:  # type: ignore[misc]
            for width_px in (390, 768, 1440):
                page.open(sink.url, width_px)
                wait_for(page, "document.querySelectorAll('.tile').length", count)
                gaps = page.evaluate(rows)
                assert all(abs(gap) <= 3 for gap in gaps), (count, width_px, gaps)
                assert page.evaluate("document.documentElement.scrollWidth") == width_px
                narrowest = page.evaluate(
                    "Math.min(...[...document.querySelectorAll('.tile')].map(one => one.offsetWidth))"
                )
                assert narrowest >= 165 and abs(narrowest - page.evaluate("tilePx")) < 16
                if width_px == 1440:
                    bottom = page.evaluate(
                        "Math.max(at('wall').getBoundingClientRect().bottom, "
                        "document.querySelector('aside').getBoundingClientRect().top)"
                    )
                    assert 0.45 * 900 < bottom <= 900, count
    assert page.errors == []


def test_nothing_keeps_people_out(page: Page, sink: HttpSink) -> None:
    """The wall, one camera, its editor: axe-core, at three widths, light and dark."""
    script = axe()
    for shown, ready in (
        ("", "document.querySelectorAll('.tile.seen').length == 3 && at('events').children.length == 1"),
        ("#gate", "document.querySelector('#view img').naturalWidth == 160"),
        ("#gate", "at('draw').hidden || isEditing() || at('draw').click(), at('applying').hidden = false, isEditing()"),
    ):
        url = f"{sink.url}?{len(ready)}{shown}"
        assert page.obstacles(url, script, lambda ready=ready: wait_for(page, ready)) == []  # type: ignore[misc]


@pytest.mark.timing
def test_the_first_paint_comes_at_once(page: Page, sink: HttpSink) -> None:
    """Half a second at most, of the best of five visits: the others are those of a busy machine."""
    paints_ms = []
    for visit in range(5):
        page.open(f"{sink.url}?{visit}", 390)
        wait_for(page, "performance.getEntriesByType('paint').length > 0")
        paints_ms.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    assert min(paints_ms) <= 500


def test_events_lie_along_a_line_of_time(page: Page, sink: HttpSink) -> None:
    page.open(sink.url, 1200)
    wait_for(page, "document.querySelectorAll('#times i').length", 1)
    assert page.evaluate("at('times').getAttribute('aria-label')").endswith(": gate 1")
    assert page.evaluate("at('times').firstChild.firstChild.textContent") == "gate"
    page.evaluate("document.querySelector('#times i').click()")
    assert page.evaluate("document.activeElement.parentElement.dataset.name") == "ab12"
    page.evaluate("showEvents([{...events[0], id: 'cd34', stream: 'yard'}, ...events])")
    assert page.evaluate("document.activeElement.parentElement.dataset.name") == "ab12", "a newer event takes no focus"
    wait_for(page, "at('said').lastChild.textContent", "1 new, intruder on yard")
    page.evaluate("unsaid = 1, saidEvents = -Infinity, showEvents([]), sayEvents()")  # as after a new start of the run


def test_zones_are_drawn_and_given_back_as_a_stage_takes_them(page: Page, sink: HttpSink) -> None:
    page.open(f"{sink.url}#gate", 1200)
    wait_for(page, "document.querySelector('#view img').naturalWidth", 160)
    wait_for(page, "size.join()", "160,90")
    page.click(*middle_of(page, "#draw"))
    page.click(*middle_of(page, "[data-kind=zone]"))
    corners = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
    for across, down in corners:
        page.click(*middle_of(page, "#places", across, down))
    page.press("Enter")
    page.click(*middle_of(page, "[data-kind=line]"))
    for across in (0.1, 0.9):
        page.click(*middle_of(page, "#places", across, 0.9))
    page.press("Enter")
    given = yaml.safe_load(page.evaluate("document.querySelector('#yaml').textContent"))
    section = ZonesSection.model_validate({"stage": "zones", "from": "track", **given})
    assert section.zones["zone_1"].streams == ("gate",)
    for found, wanted in zip(section.zones["zone_1"].points, corners, strict=True):
        assert math.dist(found, wanted) < 0.01
    assert len(section.lines["line_1"].points) == 2
    for name, said in (("9", "is no name"), ("zone_1", "two are called zone_1")):
        rename(page, name)
        assert said in page.evaluate("document.querySelector('#wrong').textContent")
    crossing = "fault({name: 'a', kind: 'zone', points: [[0, 0], [1, 1], [1, 0], [0, 1]]}, [])"
    assert page.evaluate(crossing) == "the border of a crosses itself"
    assert page.evaluate("at('applying').hidden"), "without a token nothing is applied"
    assert page.errors == []


PARTS = Path(__file__).parents[2] / "pipelines" / "assets"
TOKEN = "a-token-of-a-page-1234"
YARD = f"""
models:
  parts: {{onnx: {PARTS / "parts.onnx"}, task: {{detect: yolox, labels: {PARTS / "parts.txt"}}}}}
stages:
  gate: {{source: "synthetic:noise", size: 160x90, realtime: true, fps: 4}}
  yard: {{source: "synthetic:noise", size: 160x90, realtime: true, fps: 4}}
  find: {{infer: parts, from: [gate, yard]}}
  areas: {{stage: zones, from: find, zones: {{
    both: [[0, 0], [0.5, 0], [0.5, 0.5]],
    mine: {{streams: [yard], inside: center, points: [[96, 54], [150, 54], [150, 85]]}},
    other: {{streams: [gate], points: [[0, 0], [1, 0], [1, 1]]}}}}}}
  page: {{sink: http, from: areas, port: 0, token: {TOKEN}}}
"""


@pytest.fixture
def yard(tmp_path: Path, page: Page) -> Iterator[Pipeline]:
    (tmp_path / "yard.yaml").write_text(YARD)
    with Pipeline(tmp_path / "yard.yaml") as pipeline:
        pipeline.start()
        served: Any = pipeline._assembly.task("page").stage
        wait_until(lambda: served.url)
        page.open(served.url.replace("//", f"//x:{TOKEN}@"), 1200)  # the browser knows the password from now on
        page.open(f"{served.url}?1#yard", 1200)
        wait_for(page, "places.map(one => one.name).join()", "both,mine")
        wait_for(page, "document.querySelector('#view img').naturalWidth", 160)
        page.evaluate("at('draw').click()")
        yield pipeline


def apply(page: Page, token: str = TOKEN) -> str:
    page.evaluate(f"at('done').textContent = '', at('token').value = '{token}', at('apply').click()")
    wait_for(page, "at('done').textContent != ''")
    return str(page.evaluate("at('done').textContent"))


def test_zones_are_drawn_by_keys_and_applied_to_the_run(page: Page, yard: Pipeline) -> None:
    def zones() -> dict[str, Any]:
        return dict(yard.control.show()["live"]["stages.areas.zones"])

    before = zones()
    assert apply(page) == "Nothing has changed"
    page.evaluate("document.querySelector('#places [aria-label=\"zone both\"]').focus()")
    press_enter(page)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Point 1 of both: 0.00, 0.00"
    page.evaluate("document.querySelector('[data-kind=zone]').focus()")
    press_enter(page)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Point 1 of zone_1: 0.30, 0.30"
    for key in ("ArrowRight", "ArrowRight", "+", "Delete"):
        page.press(key)
    rename(page, "door")
    assert apply(page) == "Applied. Counts begin anew"
    door = {"streams": ["yard"], "points": [[0.31, 0.3], [0.7, 0.3], [0.7, 0.7], [0.3, 0.7]]}
    assert zones() == {**before, "door": door}
    page.evaluate("drawn[1].points[0][0] = 0.5, drawn[0].points[0][1] = 0.1, refresh()")
    assert apply(page) == "Applied, on every camera: both. Counts begin anew"
    assert zones()["mine"] == {**before["mine"], "points": [[0.5, 0.6], [0.9375, 0.6], [0.9375, 0.9444]]}
    assert zones()["other"] == before["other"]
    page.evaluate("current = drawn[2], at('remove').click()")
    assert apply(page).startswith("Applied")
    assert "door" not in zones() and page.errors == []
    page.evaluate("at('done').textContent = '', at('save').click()")
    wait_for(page, "at('done').textContent.endsWith('yard.live.yaml')")


def test_what_cannot_be_applied_says_why_and_changes_nothing(page: Page, yard: Pipeline) -> None:
    before = yard.control.show()["live"]
    page.evaluate("drawn[1].points[0][0] = 0.5, refresh()")
    assert apply(page, "a-token-that-is-wrong") == "this is not the page's token"
    page.evaluate("drawn[1].points.splice(2), refresh()")
    assert apply(page) == "Nothing is applied: see above"
    page.evaluate("drawn[1].points.push([0.9, 0.9]), drawn.push({...drawn[1]}), refresh(), refresh()")
    assert page.evaluate("at('wrong').innerText") == f"two are called {page.evaluate('drawn[1].name')}"
    page.evaluate("drawn.pop(), refresh()")
    assert page.evaluate("at('wrong').children.length") == 0
    page.evaluate("fault = () => '', drawn[1].name = 'no name', refresh()")
    assert "no name" in apply(page), "what the page lets pass the run refuses"
    assert yard.control.show()["live"] == before


def test_the_recording_of_an_event_plays_on_the_page(page: Page, tmp_path: Path) -> None:
    """Of a camera's own packets, cut out by a record stage, as the page finds them in its index."""
    film = write_clip(tmp_path / "film.mp4", 120)
    source = source_for("gate", SourceStage(source=str(film)))
    keys = {"path": tmp_path / "{stream}.mp4", "clips": {"before": "1s", "after": "1s"}}
    section = SinkStage.model_validate({"sink": "record", "from": "alarm", **keys})
    record = make_stage(section, "clips", Context(sources={"gate": source}))
    event = Event("ab12", "intruder", "begin", "gate", 10**18, 0.0, "lane", "in", 4, "person")
    with opened(record):
        for frame in source.frames(threading.Event()):
            record.process(result_of(frame, {"alarm": Events((event,))} if frame.index == 60 else {}))
            frame.lease.release()
        source.close()
    with opened(live_page(stats, clips=tmp_path / "clips.jsonl")) as sink:
        image = np.full((90, 160, 3), 40, np.uint8)
        result = result_of(frame_of(160, 90, stream="gate"), {"alarm": Events((event,))})
        sink.process(replace(result, image=image))
        page.open(sink.url, 390)
        wait_for(page, "document.querySelector('#events a')?.textContent", "Play the recording")
        page.evaluate("document.querySelector('#events a').scrollIntoView()")
        page.click(*middle_of(page, "#events a"))
        wait_for(page, "document.querySelector('#film').currentTime > 0.5")
        shown = page.evaluate("[film.videoWidth, film.videoHeight, film.duration > 1.9, cinema.open]")
        assert shown == [*SIZE, True, True]
        page.click(*middle_of(page, "#close"))
        wait_for(page, "cinema.open", False)
        assert page.errors == []
