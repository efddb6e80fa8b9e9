"""What is said of a text that is not YAML: which line, what is wrong with it, and how it would be right."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from edgert import yaml_nodes
from edgert.config.document import read_document
from edgert.errors import ConfigError

CAM = "stages:\n  cam: {source: a.mp4}\n"
CASES = [
    (
        f"{CAM}  rec: {{sink: record, from: cam, path: out/{{stream}}-{{date}}.mp4}}\n",
        "line 3 has a value with { in it, which needs quotes: out/{stream}-{date}.mp4",
        'write path: "out/{stream}-{date}.mp4"',
    ),
    (f"{CAM}  rec: {{path: {{stream}}/{{date}}.mp4}}\n", "line 3 has a value with {", '"{stream}/{date}.mp4"'),
    (f"{CAM}  rec:\n    path: {{stream}}-x.mp4\n    a: 1\n", "line 4 has a value with {", 'path: "{stream}-x.mp4"'),
    (f"{CAM}\tout: {{sink: x}}\n", "line 3 begins with a tab", "spaces"),
    (f"{CAM}  out:\n\t\tsink: x\n", "line 4 begins with a tab", "spaces"),
    (f"{CAM}   out: {{sink: x}}\n", "line 3 is 3 spaces in, its neighbors 2", "the same number of spaces"),
    (f"{CAM} out: {{sink: x}}\n", "line 3 is 1 space in, its neighbors 0 or 2", "the same number of spaces"),
    ("a:\n  b:\n    c: 1\n   d: 2\n", "line 4 is 3 spaces in, its neighbors 2 or 4", "the same number"),
    ("a:\n  b: 1\n    c: 2\n", "line 3 is 4 spaces in, its neighbors 2", "the same number of spaces"),
    ("a:\n  b: 1\n  fps:30\n  c: 2\n", "line 3 has no space after the colon", "write fps: 30"),
    ("a: {source: *.mp4}\n", "line 1: a value cannot begin with *", "in quotes"),
    ("a: @home\n", "line 1: a value cannot begin with @", "in quotes"),
    ('a: "b\nc: 1\n', "the quote that begins on line 1 is not closed", "the same quote"),
    ("a: {b: 1\nc: 2\n", "the { of line 1 is not closed, or a comma is missing", "end it with }"),
    ("a: [1, 2\nc: 2\n", "the [ of line 1 is not closed, or a comma is missing", "end it with ]"),
    ("a: b: c\n", "line 1 has a second colon", "in quotes"),
    ("a: 1\n---\nb: 2\n", "line 2 begins a second document", "one pipeline"),
]


@pytest.mark.parametrize(("text", "why", "fix"), CASES)
def test_a_mistake_is_named_with_its_repair(tmp_path: Path, text: str, why: str, fix: str) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ConfigError, match="is not valid YAML") as caught:
        read_document(tmp_path / "p.yaml")
    assert caught.value.why.startswith(why) and fix in caught.value.fix, str(caught.value)
    assert caught.value.where.startswith(f"{tmp_path}/p.yaml:")


@given(st.text(st.sampled_from("ab:{}[]-, \t\n\"'*&!@`%|>#0?"), max_size=40))
def test_any_text_is_answered(text: str) -> None:
    try:
        yaml_nodes.compose(text)
    except yaml.MarkedYAMLError as error:
        why, _ = yaml_nodes.explain_mistake(text, error)
        assert why
