"""The page as a whole: one file, whole and well formed, whatever is in it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from edgert.report.quantization_page import render
from edgert.report.quantization_record import LayerRow, Note, Provenance, QuantizationReport
from tests.helpers.quantization_report import EMPTY, full_report, tensor_row

VOID = {"meta", "link", "br", "input"}
SECTIONS = ["accuracy", "speed", "layers", "kept", "activations", "notes", "origin"]
HOSTILE = "</title></style></svg></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\u202e\ud800"


class Outline(HTMLParser):
    """What is in a page; fails where elements do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), f"an attribute twice in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.elements if name == tag)


def hostile_report() -> QuantizationReport:
    report = full_report(prefix=HOSTILE)
    return replace(
        report,
        provenance=Provenance(HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, HOSTILE, HOSTILE),
        target=HOSTILE,
        cost_meaning=HOSTILE,
        accuracy=tuple(replace(row, metric=HOSTILE) for row in report.accuracy),
        timed_on=HOSTILE,
        layers=tuple(replace(row, op=HOSTILE, reason=HOSTILE) for row in report.layers),
        tensors=tuple(replace(row, chosen=HOSTILE, thresholds={HOSTILE: row.amax}) for row in report.tensors),
        notes=(Note(HOSTILE),),
        settings={HOSTILE: HOSTILE},
        sizes_bytes={HOSTILE: 5, **report.sizes_bytes},
    )


@pytest.mark.parametrize("report", [EMPTY, full_report(), full_report(400, 3), hostile_report()])
def test_page_is_well_formed_and_has_all_sections(report: QuantizationReport) -> None:
    outline = Outline(render(report))
    assert [attributes["id"] for attributes in outline.all("section")] == SECTIONS
    assert [attributes["href"] for attributes in outline.all("a")][-len(SECTIONS) :] == [f"#{one}" for one in SECTIONS]
    identities = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize("report", [full_report(), hostile_report()])
def test_page_needs_nothing_from_outside(report: QuantizationReport) -> None:
    outline = Outline(render(report))
    loading = {"src", "srcset", "data", "action", "poster", "xlink:href", "style", "background"}
    for tag, attributes in outline.elements:
        assert not loading & set(attributes), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
    css = "".join(outline.texts["style"])
    assert "url(" not in css and "@import" not in css
    assert not re.search(r"https?:|//[a-z]", css + "".join(outline.texts["script"]).replace("// ", ""))


def test_hostile_names_stay_text() -> None:
    text = render(hostile_report())
    outline = Outline(text)
    assert len(list(outline.all("script"))) == len(list(outline.all("style"))) == 1
    assert list(outline.all("img")) == []
    assert "\x00" not in text and "\u202e" not in text
    assert text.encode("utf-8")
    titles = [attributes.get("title") for attributes in outline.all("span")]
    assert any(title and title.startswith(HOSTILE[:40]) and r"\x00\u202e\ud800" in title for title in titles)


def test_policy_admits_only_the_pages_own_script() -> None:
    text = render(full_report())
    policy = next(one["content"] for one in Outline(text).all("meta") if one.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "unsafe" not in policy and policy.count("sha256-") == 2


def test_tables_have_headers_and_charts_have_titles() -> None:
    text = render(full_report())
    outline = Outline(text)
    tables = len(list(outline.all("table")))
    assert tables == len(list(outline.all("caption"))) == len(list(outline.all("thead"))) >= 7
    assert {one["scope"] for one in outline.all("th")} == {"col", "row"}
    charts = re.findall(r'<svg class="chart[^>]*role="img"[^>]*><title>', text)
    assert len(charts) == sum("chart" in (one.get("class") or "") for one in outline.all("svg")) == 2 + 9


def test_missing_parts_say_why() -> None:
    text = render(replace(EMPTY, absent={"accuracy": "There were no labels & no time."}))
    assert "There were no labels &amp; no time." in text
    for reason in (
        "Speed was not measured.",
        "No activations were counted.",
        "noise of single layers was not measured",
    ):
        assert reason in text
    assert "<table" not in text


def test_names_are_whole_on_hover_and_elided_in_the_middle() -> None:
    name = "/backbone/" + "block/" * 40 + "Conv_output_0"
    text = render(replace(EMPTY, tensors=(tensor_row(name),)))
    assert f'title="{name}"' in text
    shown = [data for data in Outline(text).texts["span"] if "/" in data]
    assert shown[0].endswith("…") and shown[1] == name[-18:] and len(shown[0]) < 60


def test_four_hundred_tensors_stay_under_two_megabytes() -> None:
    name = "/model/backbone/" + "CSPLayer/bottleneck/" * 5
    report = full_report(400, 3, name)
    tensors = [replace(report.tensors[0], name=f"{name}/{number}", amax=2 + number / 1000) for number in range(400)]
    text = render(replace(report, tensors=tuple(tensors)))
    assert text.count("Histogram of") == 400
    assert len(text.encode()) < 2_000_000


def test_layers_that_are_not_known_are_drawn_as_gaps() -> None:
    rows = (LayerRow("a", "Conv"), LayerRow("b", "Conv", float("inf")), LayerRow("c", "Conv", -3.0))
    text = render(replace(EMPTY, layers=rows))
    assert "a (Conv, INT8): –" in text and "b (Conv, INT8): exact" in text and "c (Conv, INT8): −3.0" in text
    shown = re.sub(r'data-order="-?inf"', "", text.split("<main>")[1].split("<script>")[0])
    assert not re.search(r"\b(nan|inf)\b", shown)
