"""Lines of TensorRT's logs. The files under tests/data/trt_log are written in the form of published logs."""

import time
from collections import Counter
from pathlib import Path

import pytest

from edgert.backend.tensorrt import log
from tests.helpers.trt_log import parse_log

FOLDER = Path(__file__).resolve().parents[3] / "data" / "trt_log"


def records(version: str) -> tuple[log.LogRecord, ...]:
    return parse_log((FOLDER / f"{version}.txt").read_text())


@pytest.mark.parametrize(
    ("version", "kinds"),
    [
        ("8.6", {"moved": 3, "reason": 2, "refused": 2, "dla": 1, "gpu": 3}),
        ("10.3", {"moved": 2, "reason": 3, "dla": 2, "gpu": 2}),
        ("10.7", {"moved": 2, "reason": 3, "implementation": 1}),
        ("11.4", {"moved": 1, "reason": 1, "dla": 1, "gpu": 2}),
    ],
)
def test_every_line_that_means_something_is_known(version: str, kinds: dict[str, int]) -> None:
    assert Counter(record.kind for record in records(version) if record.kind) == kinds


@pytest.mark.parametrize(
    ("version", "where"),
    [
        (
            "8.6",
            {
                "{ForeignNode[/stem/Relu.../neck/Relu]}": "dla",
                "/stem/Conv": "gpu",
                "/neck/Resize": "gpu",
                "PWN(/head/Pow, /head/Mul)": "gpu",
            },
        ),
        (
            "10.3",
            {
                "{ForeignNode[/stem/Conv]}": "dla",
                "{ForeignNode[/body/Conv.../neck/Concat]}": "dla",
                "/head/Softmax": "gpu",
                "/body/Gelu": "gpu",
            },
        ),
        (
            "11.4",
            {
                "{ForeignNode[/stem/Conv.../neck/Concat]}": "dla",
                "/head/TopK": "gpu",
                "{ForeignNode[(Unnamed Layer* 3) [Shuffle].../head/Mul]}": "gpu",
            },
        ),
        ("10.7", {}),
    ],
)
def test_summary(version: str, where: dict[str, str]) -> None:
    assert log.logged_accelerators(records(version)) == where


@pytest.mark.parametrize(
    ("version", "layer", "why"),
    [
        ("8.6", "/head/Pow", "DLA cores do not support POW"),
        ("8.6", "/neck/Resize", "DLA only supports slicing 4 dimensional tensors"),
        ("8.6", "/stem/Conv", "Validation failed"),
        ("8.6", "/head/Constant_output_0", "Unsupported on DLA"),
        ("10.3", "/head/Sigmoid", "missing scale"),
        ("10.3", "/head/Softmax", "FP16 and Int8"),
        ("10.3", "/body/Gelu", "Activation type: GELU_ERF"),
        ("10.7", "/stem/Conv", "dynamic shapes"),
        ("10.7", "/neck/Upsample", "bilinear"),
        ("11.4", "/head/TopK", "does not support this operation"),
    ],
)
def test_reasons(version: str, layer: str, why: str) -> None:
    assert why in log.why_off_dla(records(version))[layer]


@pytest.mark.parametrize(
    ("text", "kind", "layer"),
    [
        ("Default DLA is enabled but layer Resize is not supported on DLA, falling back to GPU.", "moved", "Resize"),
        ("DLA Standalone is enabled but layer: a/b is not supported on DLA", "reason", "a/b"),
        ("a: Batch size (combined volume except for CHW dimensions) 8192 for DLA exceeds 4096", "reason", "a"),
        ("Requested amount of GPU memory (1 bytes) could not be allocated; out of memory", "memory", ""),
        ("Could not find any implementation for node conv1 + relu1.", "implementation", "conv1 + relu1"),
        ("Memory usage during build: 12 MiB", "", ""),
        ("Detected 1 inputs and 3 output network tensors.", "", ""),
    ],
)
def test_single_lines(text: str, kind: str, layer: str) -> None:
    record = log.classify("WARNING", text)
    assert (record.kind, record.layer) == (kind, layer)


def test_verbose_lines_are_retained_only_for_what_they_mean() -> None:
    retained = [record.text for record in records("10.3") if log.is_retained(record) and record.severity == "VERBOSE"]
    assert retained and all(text.startswith(("[DlaLayer]", "[GpuLayer]")) for text in retained)


@pytest.mark.timing
def test_long_verbose_lines_cost_nothing() -> None:
    """Logs have lines of tens of thousands of characters; a pattern that looks everywhere would take minutes."""
    line = "Layer(CaskConvolution): " + "a + b: does not " * 5000
    started = time.perf_counter()
    for severity in ("VERBOSE", "INFO"):
        assert log.classify(severity, line).kind == ""
    assert time.perf_counter() - started < 1


def test_foreign_ends() -> None:
    assert log.foreign_ends("{ForeignNode[a...b]}") == ("a", "b")
    assert log.foreign_ends("{ForeignNode[a]}") == ("a",)
    assert log.foreign_ends("{ForeignNode[(Unnamed Layer* 0) [ElementWise]]}") == ("(Unnamed Layer* 0) [ElementWise]",)
    assert log.foreign_ends("a + b") == ()


def test_tail_prefers_errors() -> None:
    lines = [log.LogRecord("INFO", "one"), log.LogRecord("ERROR", "two"), log.LogRecord("INFO", "three")]
    assert log.tail(lines) == "two"
    assert log.tail(lines[:1]) == "one" and log.tail([log.LogRecord("VERBOSE", "x")]) == ""


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Requested amount of GPU memory (2147483648 bytes) could not be allocated. Out of memory.", 2147483648),
        ("Skipping tactic 0 due to insufficient memory on requested size of 12345 detected for tactic 0x1.", 12345),
        ("Out of memory", 0),
    ],
)
def test_how_much_memory_was_asked_for(text: str, asked: int) -> None:
    assert (
        log.requested_bytes([log.classify("ERROR", text), log.classify("ERROR", "Requested amount (9 bytes)")]) == asked
    )
