"""Reports in a real browser: they fit, are drawn, keep nobody out, react to clicks, and ask for nothing."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from dla import Target
from edgert import simulator
from edgert.budget.rules import Budget
from edgert.graph import read
from edgert.placement.cost.power import Power
from edgert.placement.dla_share import survey
from edgert.placement.plan_record import BoardPlan, Check, EngineRow, ModelRow, Plan, Row
from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.placement.segment_engines import Step
from edgert.planner import plan_page, simulation_page
from edgert.planner.simulation import Simulation
from edgert.planner.unit_section import MOST_BOXES
from edgert.report import dla_page, quantization_page
from edgert.timeline.timeline_page import page_of
from edgert.timeline.timeline_spans import spans_of
from tests.helpers.browser import Page, axe
from tests.helpers.models import make, node, weights
from tests.helpers.quantization_report import full_report
from tests.helpers.recorded_run import recording

SIZES_PX = (390, 768, 1440)
COUNT, NODES = 500, 500
CROSSINGS = {("gpu", "dla0"): Transition(0.1), ("dla0", "gpu"): Transition(0.1)}
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>/" + "deep/" * 30


@pytest.fixture(params=["quantized", "planned", "simulated", "surveyed", "traced"])
def path(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width_px", SIZES_PX)
def test_page_fits_is_drawn_and_is_quiet(page: Page, path: Path, width_px: int, dark: bool) -> None:
    page.open(path, width_px, dark=dark)
    image = pixels(page.image())
    assert image.shape == (900, width_px, 3)
    background = np.median(image.reshape(-1, 3), axis=0)
    inked = np.abs(image.astype(np.int16) - background.astype(np.int16)).max(axis=2) > 60
    assert 0.02 < inked.mean() < 0.5
    assert inked.any(axis=1).mean() > 0.3  # lines of text and charts all the way down
    assert (background.mean() < 60) == dark
    assert page.evaluate("document.documentElement.scrollWidth") == width_px
    assert page.evaluate("window.hacked ?? null") is None
    assert_quiet(page, path)


@pytest.mark.slow
def test_nothing_keeps_people_out(page: Page, path: Path) -> None:
    assert page.obstacles(path, axe()) == []


def test_everything_is_drawn(page: Page, planned: Path, surveyed: Path) -> None:
    def count(selector: str) -> int:
        return page.evaluate(f"document.querySelectorAll('{selector}').length")

    page.open(planned, 1440)
    assert count(".network .unit") == COUNT and count(".network .crosses") > COUNT / 8
    page.open(surveyed, 1440)
    assert count(".map rect") == NODES + 1
    page.open(planned, 390)
    hidden = "Math.max(...[...document.querySelectorAll('.scroll')].map(box => box.scrollWidth - box.clientWidth))"
    assert page.evaluate(hidden) == 0


# A quantization.


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report with spaces & more.html"
    path.write_text(quantization_page.render(full_report(40, 20, HOSTILE)), encoding="utf-8")
    return path


def pixels(png: bytes) -> npt.NDArray[np.uint8]:
    image = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return image.astype(np.uint8, copy=False)


def assert_quiet(page: Page, path: Path) -> None:
    assert page.errors == []
    assert page.requests == [path.resolve().as_uri()]


def test_charts_have_ink(page: Page, quantized: Path) -> None:
    page.open(quantized, 1000)
    for chart, colors in ((".bar", 40), (".histogram", 20), (".interval", 20)):
        box = page.evaluate(
            f"(b => [b.top + scrollY, b.height])(document.querySelector('{chart}').getBoundingClientRect())"
        )
        image = pixels(page.image(int(box[0]), int(box[1])))
        assert len(np.unique(image.reshape(-1, 3), axis=0)) > colors, chart


def test_hostile_names_do_nothing_and_are_shown(page: Page, quantized: Path) -> None:
    page.open(quantized, 1000)
    assert page.evaluate("window.hacked ?? null") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelector('td .name, th .name').title").startswith(HOSTILE)
    shown = page.evaluate("document.querySelector('td .name, th .name').textContent")
    assert shown.startswith("<script>") and "…" in shown


def test_tables_sort_and_histograms_filter(page: Page, quantized: Path) -> None:
    page.open(quantized, 1000)
    first = "document.querySelector('table.sortable tbody tr').cells[0].textContent"
    sqnr = "document.querySelector('table.sortable thead th:last-child button').click()"
    assert page.evaluate(first) == "1"
    page.evaluate(sqnr)
    assert page.evaluate(first) == "6"  # the noisiest
    page.evaluate(sqnr)
    assert page.evaluate(first) != "6"
    visible = "[...document.querySelectorAll('.filtered .card')].filter(card => !card.hidden).length"
    assert page.evaluate(visible) == 14
    field = "document.querySelector('.filter')"
    page.evaluate(f"{field}.value = '/17:0'; {field}.dispatchEvent(new Event('input'))")
    assert page.evaluate(visible) <= 1
    assert_quiet(page, quantized)


def test_hovering_a_bar_names_its_layer(page: Page, quantized: Path) -> None:
    page.open(quantized, 1000)
    box = page.evaluate(
        "(chart => { chart.scrollIntoView({behavior: 'instant'}); const b = chart.getBoundingClientRect();"
        " return [b.left, b.top, b.width]; })(document.querySelector('.bar'))"
    )
    page.move(box[0] + box[2] * 5.5 / 40, box[1] + 20)
    assert page.evaluate("document.querySelector('.tip').textContent").startswith("6. <script>")
    page.move(5, 5)
    assert page.evaluate("document.querySelector('.tip').textContent") == ""


def test_page_prints(page: Page, quantized: Path) -> None:
    page.open(quantized, 1000, dark=True)
    document = page.print()
    assert document.startswith(b"%PDF-") and len(document) > 20_000


# A plan.


@pytest.fixture(scope="module")
def made() -> Plan:
    """Blocks of four units with a skip; every other block on the DLA; one name that would like to be a script."""
    costs = {"gpu": Cost(0.1, 1.0), "dla0": Cost(0.2, 0.5)}
    names = [f"/model/block.{place // 4}/part.{place % 4}" for place in range(COUNT - 1)] + [
        "<script>hacked=1</script>"
    ]
    units = tuple(Unit(name, (name,), costs) for name in names)
    pairs = [(place, place + 1) for place in range(COUNT - 1)] + [
        (place, place + 3) for place in range(0, COUNT - 3, 4)
    ]
    edges = tuple(Edge(f"t{a}.{b}", a, (b,), transitions=CROSSINGS, size_bytes=1024) for a, b in pairs)
    assignment = tuple("dla0" if place // 4 % 2 else "gpu" for place in range(COUNT))
    model = ModelRow("net", Network("net", units, edges), (EngineRow(assignment, 1.0),), 30.0, 5.0, 0.5, {"dla0": 9})
    check = Check("latency", 0.9, 0.2, "p99 45 of 50 ms", "latency: 54ms")
    row = Row("b", "15W", "mixed", (model,), 2.0, 30.0, 6.0, 9.0, 2**20, 300.0, {"gpu": 0.5}, 0.2, 0.3, 30.0, 5.0)
    row = replace(row, checks=(check,), is_best=True)
    return Plan("p", "throughput", (BoardPlan("b", "A Board", (row,), 0, ()),), "b", ("something was assumed",))


@pytest.fixture(scope="module")
def planned(made: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "plan.html"
    file.write_text(plan_page.render(made), encoding="utf-8")
    return file


def test_buttons_zoom_and_a_name_is_found(page: Page, planned: Path) -> None:
    page.open(planned, 1200)
    height = "document.querySelector('svg.network').getBoundingClientRect().height"
    before = page.evaluate(height)
    page.evaluate("document.querySelector('.zoom button').click()")
    assert page.evaluate(height) > before * 1.3
    page.evaluate("document.querySelector('.zoom button[aria-label=\"fit all of it\"]').click()")
    assert page.evaluate(height) <= page.evaluate("document.querySelector('.viewport').clientHeight")
    page.evaluate(
        "(() => { const input = document.querySelector('.zoom input'); input.value = 'BLOCK.77/part.2';"
        "input.dispatchEvent(new Event('input')); })()"
    )
    assert page.evaluate("document.querySelectorAll('.network .found').length") == 1
    assert page.errors == []


def test_a_button_goes_from_transition_to_transition(page: Page, planned: Path) -> None:
    page.open(planned, 1200)
    press = "[...document.querySelectorAll('.zoom button')].find(one => one.textContent == 'next transition').click()"
    count = page.evaluate("document.querySelector('svg.network').querySelectorAll('.crosses').length")
    seen = """(one => { const a = one.getBoundingClientRect(), b = one.closest('.viewport').getBoundingClientRect();
      return a.top >= b.top - 1 && a.bottom <= b.bottom + 1; })(document.querySelector('.here'))"""
    found = set()
    for number in range(count):
        page.evaluate(press)
        assert page.evaluate("document.querySelectorAll('.here').length") == 1
        text = page.evaluate("document.querySelector('.zoom output').textContent")
        assert text.startswith(f"{number + 1} of {count}: ") and " to " in text
        found.add(page.evaluate("document.querySelector('.here path').getAttribute('d')"))
    assert len(found) == count
    page.evaluate(press)
    assert page.evaluate("document.querySelector('.zoom output').textContent").startswith("1 of ") and page.evaluate(
        seen
    )
    assert page.errors == []


def test_a_block_leads_to_its_units_and_the_table_is_searched_and_sorted(page: Page, planned: Path) -> None:
    page.open(planned, 1200)
    blocks = page.evaluate("document.querySelectorAll('.network .block').length")
    assert 8 < blocks <= MOST_BOXES and not page.evaluate("document.querySelector('details.all').open")
    page.evaluate(
        "new Promise(done => { document.querySelectorAll('.network .block')[5]"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true})); setTimeout(done, 300); })"
    )
    assert page.evaluate("document.querySelector('details.all').open")
    found = page.evaluate("[...document.querySelectorAll('.network .found')].map(one => one.dataset.name)")
    assert found == page.evaluate(
        "[...document.querySelectorAll('.network .unit[data-group=\"5\"]')].map(one => one.dataset.name)"
    )
    assert 1 < len(found) < 20
    seen = "(one => { const a = one.getBoundingClientRect(), b = one.closest('.viewport').getBoundingClientRect();"
    seen += "return a.top >= b.top - 1 && a.bottom <= b.bottom + 1 && a.height > 30; })"
    assert page.evaluate(f"{seen}(document.querySelector('.network .found'))")  # at a size that is read
    rows = "[...document.querySelectorAll('.searchable tbody tr')].filter(one => !one.hidden).length"
    assert page.evaluate(rows) == COUNT
    page.evaluate(
        "(() => { const input = document.querySelector('.searchable input'); input.value = 'BLOCK.77/part.2';"
        "input.dispatchEvent(new Event('input')); })()"
    )
    assert page.evaluate(rows) == 1
    assert page.evaluate("document.querySelector('.searchable output').textContent") == f"1 of {COUNT} units"
    first = "document.querySelector('.searchable tbody tr').cells[0].textContent"
    page.evaluate("document.querySelector('.searchable thead button').click()")
    assert page.evaluate(first) == "1"
    assert page.evaluate("document.querySelector('.searchable tbody tr').cells[2].textContent")
    assert "Block" in page.evaluate("document.querySelector('.searchable thead').textContent")
    assert page.errors == []


@pytest.mark.parametrize("width_px", [390, 900, 1200, 1600])
def test_a_table_of_many_boards_fits_and_marks_the_smallest(
    page: Page, made: Plan, tmp_path: Path, width_px: int
) -> None:
    why = "unknown: the clocks of this power mode are unknown (not published: cpu_mhz, sms, gpu_mhz, emc_mhz)"
    unknown = BoardPlan("t", "Jetson T4000", (), None, (why,))
    board = made.boards[0]
    long = replace(board.rows[0], mode="MODE_20W_6CORE", memory_bytes=412 * 2**20, memory_error=0.83, p99_ms=0.0123)
    boards = (replace(board, title="Jetson Orin Nano 8GB Super", rows=(long,)), unknown)
    (tmp_path / "plan.html").write_text(plan_page.render(replace(made, boards=boards)), encoding="utf-8")
    page.open(tmp_path / "plan.html", width_px)
    assert page.evaluate("document.documentElement.scrollWidth") == width_px
    assert page.evaluate("document.querySelector('#boards b').textContent") == "Jetson Orin Nano 8GB Super"
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    hidden = "Math.max(...[...document.querySelectorAll('.scroll')].map(box => box.scrollWidth - box.clientWidth))"
    assert page.evaluate(hidden) == 0  # nothing scrolls sideways


def test_of_many_boards_each_is_folded_up_until_it_is_asked_for(page: Page, made: Plan, tmp_path: Path) -> None:
    boards = tuple(replace(made.boards[0], board=f"b{n}", title=f"Board {n}") for n in range(18))
    (tmp_path / "plan.html").write_text(plan_page.render(replace(made, boards=boards, smallest="b0")), encoding="utf-8")
    assert (tmp_path / "plan.html").stat().st_size < 2e6  # blocks and the slowest units of each, not all of them
    page.open(tmp_path / "plan.html", 1200)
    assert page.evaluate("document.documentElement.scrollHeight") < 4000
    assert page.evaluate("document.querySelectorAll('details.whole[open]').length") == 0
    page.evaluate("document.querySelector('nav a[href=\"#b3\"]').click()")
    unfolded = "document.querySelector('#b3 details.whole').open"
    page.evaluate(f"new Promise(done => {{ const look = () => {unfolded} ? done() : setTimeout(look, 20); look(); }})")
    assert page.evaluate(unfolded)
    drawn = "document.querySelector('#b3 svg.network').getBoundingClientRect().width"
    natural = "document.querySelector('#b3 svg.network').viewBox.baseVal.width"
    assert page.evaluate(drawn) == page.evaluate(natural)  # it fits, so it is not scaled
    assert page.errors == []


# A simulation.


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    find = simulator.Node("find", (simulator.Edge("camera", 1, "oldest"),), simulator.Task(run=(Step("gpu", 20.0),)))
    platform = simulator.Platform(power=Power(5.0, 10.0, 0.0, 0.0), cooling=simulator.Cooling(2.0))
    made = simulator.Design(
        (simulator.Source("camera", 80.0),), (find, simulator.Node("end", (simulator.Edge("find", 2, "never"),)))
    )
    played = simulator.simulate(made, platform, 30.0, record=True)
    name = "<script>hacked=1</script>"
    simulation = Simulation(name, "b", "A Board", "15W", "gpu", Budget(14.0, 50.0), "a model", ("assumed",), played)
    file = tmp_path_factory.mktemp("page") / "simulated.html"
    file.write_text(simulation_page.render(simulation), encoding="utf-8")
    return file


def test_the_second_in_full_is_stretched(page: Page, simulated: Path) -> None:
    page.open(simulated, 1200)
    assert page.evaluate("document.querySelectorAll('.timeline .lane').length") >= 2  # the GPU, and a queue
    assert page.evaluate("document.querySelectorAll('.timeline .steps').length") >= 1
    width = "document.querySelector('.timeline').getBoundingClientRect().width"
    before = page.evaluate(width)
    page.evaluate("document.querySelector('.zoom button').click()")
    assert page.evaluate(width) == 2 * before
    page.evaluate("[...document.querySelectorAll('.zoom button')].at(-1).click()")
    assert page.evaluate(width) == before
    assert page.errors == []


# A DLA.


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes, name = [], "x"
    for place in range(NODES):
        op = ("Relu", "Neg", "Sin")[place % 3]
        nodes.append(node(op, [name], [f"t{place}"], name=f"/model/backbone/block.{place}/{'deep/' * 12}{op}"))
        name = f"t{place}"
    nodes.append(node("Conv", [name, "w"], ["y"], name="<script>window.hacked = 1</script>"))
    model = make(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}, {"w": weights(4, 3, 1, 1)})
    file = tmp_path_factory.mktemp("page") / "dla.html"
    text = dla_page.render(survey(read(model), Target(2, "10.3", "int8")), "net.onnx", "Jetson Orin NX 16GB")
    file.write_text(text, encoding="utf-8")
    return file


def shown(page: Page) -> int:
    count = page.evaluate(
        "[...document.querySelectorAll('.nodes tbody tr')].filter(row => row.checkVisibility()).length"
    )
    assert isinstance(count, int)
    return count


def choose(page: Page, verdict: str) -> None:
    page.evaluate(f"document.querySelector('.choices input[value={verdict}]').click()")


@pytest.mark.parametrize("width_px", [390, 1200])
def test_filters(page: Page, surveyed: Path, width_px: int) -> None:
    page.open(surveyed, width_px)
    assert shown(page) == 167  # at first those that are refused
    choose(page, "yes")
    assert shown(page) == 167 + 168  # 167 of Relu, and the Conv
    choose(page, "verify")
    assert shown(page) == NODES + 1
    choose(page, "yes")
    choose(page, "verify")
    assert shown(page) == 167
    page.evaluate(
        "(box => { box.value = 'block.1/'; box.dispatchEvent(new Event('input', {bubbles: true})); })"
        "(document.querySelector('.choices .filter'))"
    )
    assert shown(page) == 1
    assert page.evaluate("document.querySelector('.choices output').textContent") == f"1 of {NODES + 1} nodes"


def test_every_node_is_there_without_scripts(page: Page, surveyed: Path) -> None:
    page.open(surveyed, 1200, scripts=False)
    page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert shown(page) == NODES + 1
    assert page.evaluate("document.querySelector('.choices')") is None


# A time line.


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traced") / "run.html"
    path.write_text(page_of(spans_of(recording(400, camera=HOSTILE))), encoding="utf-8")
    return path


def line_of(page: Page) -> npt.NDArray[np.uint8]:
    place = page.evaluate(
        "(({top, height}) => [top, height])(document.querySelector('canvas').getBoundingClientRect())"
    )
    page.evaluate("new Promise(requestAnimationFrame)")
    return pixels(page.image(round(place[0]), min(round(place[1]), 600)))


def test_a_frame_is_chosen_zoomed_to_and_told_in_words(page: Page, traced: Path) -> None:
    page.open(traced, 1440)
    whole = line_of(page)
    assert page.evaluate("document.querySelector('.zoom output').textContent") == "10 s shown"
    page.evaluate("document.querySelector('[data-do=slowest]').click()")
    near = line_of(page)
    assert (whole != near).any()
    head = page.evaluate("document.querySelector('.way h3').textContent")
    assert head.startswith(HOSTILE) and " ms from capture to its end" in head
    steps = page.evaluate("[...document.querySelectorAll('.way tbody tr')].map(row => row.cells[2].textContent)")
    assert "waits in the queue before find" in steps and "find" in steps
    number = page.evaluate("document.querySelector('.zoom input').value")
    page.evaluate("document.querySelector('[data-do=after]').click()")
    assert int(page.evaluate("document.querySelector('.zoom input').value")) == int(number) + 1
    page.evaluate("document.querySelector('[data-do=lost]').click()")
    assert "lost" in page.evaluate("document.querySelector('.way h3').textContent")
    page.evaluate("document.querySelector('.lines').focus()")
    for key in ("ArrowRight", "+", "Home"):
        before = line_of(page)
        page.press(key)
        assert (line_of(page) != before).any(), key
    assert page.evaluate("document.querySelector('.way').textContent") == ""
    assert page.evaluate("window.hacked ?? null") is None
    assert_quiet(page, traced)


def test_a_click_on_a_bar_chooses_its_frame(page: Page, traced: Path) -> None:
    page.open(traced, 1440)
    page.evaluate("document.querySelector('[data-do=slowest]').click()")
    before = page.evaluate("document.querySelector('.zoom input').value")
    left, top, width = page.evaluate(
        "(({left, top, width}) => [left, top, width])(document.querySelector('canvas').getBoundingClientRect())"
    )
    for part in range(1, 40):  # bars of the first row: frames on their lane
        page.click(left + width * part / 40, top + 22 + 14 + 9)
        if page.evaluate("document.querySelector('.zoom input').value") != before:
            break
    else:
        pytest.fail("no bar was hit")


def test_a_time_line_says_in_words_what_it_cannot_draw(page: Page, traced: Path) -> None:
    page.open(traced, 1440, scripts=False)
    assert page.evaluate("document.querySelector('.traced').hidden")
    assert "does not run here" in page.evaluate("document.querySelector('.traced-off').textContent")
    assert page.evaluate("document.querySelectorAll('#times tbody tr').length") > 2
