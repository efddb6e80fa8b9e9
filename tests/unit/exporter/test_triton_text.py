"""Text that any reader of protocol buffers takes."""

from hypothesis import given, strategies as st

from edgert.exporter.triton import Word, format_message, map_entries
from tests.helpers.triton import parsed


def test_every_kind_of_field() -> None:
    group = [{"count": 2, "kind": Word("KIND_CPU")}, {"count": 1, "gpus": [0, 1]}]
    ports = [{"name": "x", "dims": [-1, 3], "reshape": {"shape": []}, "optional": True}]
    message = {"name": "m", "max_batch_size": 0, "input": ports, "instance_group": group}
    read = parsed(format_message({**message, "parameters": map_entries({"a": {"string_value": "b"}})}))
    assert (read.name, list(read.input[0].dims), read.input[0].optional) == ("m", [-1, 3], True)
    assert read.input[0].HasField("reshape") and not read.input[0].reshape.shape
    assert [one.count for one in read.instance_group] == [2, 1] and list(read.instance_group[1].gpus) == [0, 1]
    assert read.parameters["a"].string_value == "b"


@given(st.text())
def test_any_text_reads_back(text: str) -> None:
    encodable = text.encode("utf-8", "ignore").decode()
    assert parsed(format_message({"name": encodable})).name == encodable
