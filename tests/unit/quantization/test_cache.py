import numpy as np
import pytest
from hypothesis import given, strategies as st

from edgert.errors import CalibrationError
from edgert.quantization.lowering.lower import lower
from edgert.quantization.lowering.trt_form import cache_text, dla_scales, parse_cache, version_number, write_cache
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.trt_scheme import fp16_exceptions, layer_precisions
from tests.helpers.errors import Exactly, raises
from tests.helpers.models import node
from tests.unit.quantization.nets import after_conv, amax_of, branches, feeds_of, graph_of, residual

names = st.text(min_size=1).filter(lambda name: not set(name) & set("\n\r\0"))
positive = st.floats(min_value=2.0**-149, max_value=2.0**127, width=32)


class TestVersion:
    @pytest.mark.parametrize(
        ("version", "number"),
        [
            ("7.1.3", 7103),
            ("8.5.2", 8502),
            ("8.6.2", 8602),
            ("8.6", 8600),
            ("10.0.1", 100001),
            ("10.3.0", 100300),
            ("10.3.0.30", 100300),
            ("10.13.3.9", 101303),
        ],
    )
    def test_is_written_as_the_release_counts(self, version: str, number: int) -> None:
        assert version_number(version) == number
        text = write_cache({"x": 1.0}, version)
        assert text.startswith(f"TRT-{number}-EntropyCalibration2\n")
        assert parse_cache(text) == {"x": 1.0}

    @pytest.mark.parametrize("version", ["11.0.0", "11.4.1", "12.0"])
    def test_without_calibrators_is_refused(self, version: str) -> None:
        with raises(CalibrationError, "reads no calibration cache", fix="Q/DQ"):
            write_cache({"x": 1.0}, version)

    @pytest.mark.parametrize("version", ["ten", "10", "", "9.3.0", "8.12.0", "10.3.100", "-8.6.0"])
    def test_that_does_not_exist_is_refused(self, version: str) -> None:
        with pytest.raises(CalibrationError):
            version_number(version)


class TestWrite:
    def test_scales_are_big_endian_float32(self) -> None:
        text = write_cache({"images": 0.0078720934689044952, "one": 1.0, "unit": 1 / 127}, "8.6.0")
        assert text == "TRT-8600-EntropyCalibration2\nimages: 3c00f9f4\none: 3f800000\nunit: 3c010204\n"

    def test_leading_zeros_stay(self) -> None:
        assert write_cache({"x": 2.0**-140}, "10.3.0").endswith("\nx: 00000200\n")

    @pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e39, 1e-60])
    def test_a_scale_that_is_none_is_refused(self, scale: float) -> None:
        with pytest.raises(CalibrationError, match="'bad' has no usable scale"):
            write_cache({"good": 1.0, "bad": scale}, "10.3.0")

    @pytest.mark.parametrize("name", ["", "a\nb", "a\r", "\0"])
    def test_a_name_that_breaks_the_line_is_refused(self, name: str) -> None:
        with pytest.raises(CalibrationError, match="cannot be named"):
            write_cache({name: 1.0}, "10.3.0")

    def test_no_scales_are_refused(self) -> None:
        with pytest.raises(CalibrationError, match="has no scales"):
            write_cache({}, "10.3.0")


class TestParse:
    @given(st.dictionaries(names, positive, min_size=1))
    def test_reads_what_was_written(self, scales: dict[str, float]) -> None:
        cache = parse_cache(write_cache(scales, "10.3.0").replace("EntropyCalibration2", "MinMaxCalibration", 1))
        assert list(cache.items()) == list(scales.items())

    def test_names_end_at_the_last_colon(self) -> None:
        scales = parse_cache("TRT-8502-EntropyCalibration2\na: b: 3f800000\n(Unnamed Layer* 0) :: 40000000\n")
        assert scales == {"a: b": 1.0, "(Unnamed Layer* 0) :": 2.0}

    def test_line_ends_and_blank_lines_do_no_harm(self) -> None:
        text = "TRT-100300-EntropyCalibration2\r\n\r\nx: 3F800000\r\ny: 40000000"
        assert parse_cache(text) == {"x": 1.0, "y": 2.0}

    @pytest.mark.parametrize(
        "line", ["x 3f800000", "x: 3f8", "x: 3f8000000", "x: 3g800000", ": 3f800000", "x:3f800000"]
    )
    def test_a_damaged_line_is_named(self, line: str) -> None:
        with raises(CalibrationError, "damaged", where=Exactly("line 3")):
            parse_cache(f"TRT-8600-EntropyCalibration2\nok: 3f800000\n{line}\n")

    @pytest.mark.parametrize("digits", ["7fc00000", "7f800000", "bf800000", "00000000", "80000000"])
    def test_a_number_that_is_no_scale_is_named(self, digits: str) -> None:
        with raises(CalibrationError, "'x' has no usable scale", where=Exactly("line 2")):
            parse_cache(f"TRT-8600-EntropyCalibration2\nx: {digits}\n")

    def test_a_tensor_there_twice_is_named(self) -> None:
        with raises(CalibrationError, "second scale for tensor 'x'", where=Exactly("line 4")):
            parse_cache("TRT-8600-EntropyCalibration2\nx: 3f800000\ny: 3f800000\nx: 3f800000\n")

    @pytest.mark.parametrize("text", ["", "x: 3f800000\n", "TRT-EntropyCalibration2\n", "TRT-8600\n"])
    def test_a_file_of_another_kind_is_known_by_its_header(self, text: str) -> None:
        with raises(CalibrationError, "not a TensorRT calibration cache", where=Exactly("line 1")):
            parse_cache(text)


class TestCacheOf:
    def test_names_every_float_tensor_and_shares_scales(self) -> None:
        model = branches()
        graph = graph_of(model)
        amax = amax_of(model, feeds_of(model))
        scales = parse_cache(cache_text(graph, scheme(graph, "dla"), amax, "10.3.0"))
        assert list(scales) == ["x", "t0", "r0", "p", "t1", "t2", "j", "k", "l", "m", "y"]
        assert scales["t0"] == scales["r0"] == scales["p"] == np.float32(amax(("r0", "p"))) / np.float32(127)
        assert len({scales[name] for name in ("t1", "t2", "j", "k", "l", "m")}) == 1
        assert len({scales[name] for name in ("x", "t0", "t1", "y")}) == 4

    def test_has_the_numbers_of_the_typed_form(self) -> None:
        model = residual()
        graph = graph_of(model)
        plan, amax = scheme(graph, "dla"), amax_of(model, feeds_of(model))
        typed = lower(graph, plan, amax)
        rounded = {one.inputs[0]: float(typed.constants[one.inputs[1]]) for one in typed.nodes if one.op[:2] == "Qu"}
        scales = dla_scales(graph, plan, amax)
        assert {name: scales[name] for name in rounded} == rounded
        assert set(scales) - set(rounded) == {"y"}

    def test_what_is_behind_the_last_rounding_shares_its_scale(self) -> None:
        model = after_conv(node("MaxPool", ["t"], ["y"], name="pool", kernel_shape=[2, 2]))
        graph = graph_of(model)
        scales = dla_scales(graph, scheme(graph, "dla"), amax_of(model, feeds_of(model)))
        assert scales["y"] == scales["t"]

    def test_a_last_activation_decides_for_the_convolution_before_it(self) -> None:
        model = after_conv(node("Relu", ["t"], ["y"], name="relu"))
        graph = graph_of(model)
        amax = amax_of(model, feeds_of(model))
        scales = dla_scales(graph, scheme(graph, "dla"), amax)
        assert scales["t"] == scales["y"] == np.float32(amax(("y",))) / np.float32(127)


class TestExceptions:
    def test_are_all_nodes_of_the_units_kept(self) -> None:
        graph = graph_of(residual())
        assert fp16_exceptions(graph, scheme(graph, "dla", ["c2", "c0"])) == ("c0", "relu0", "c2", "add", "relu2")
        assert fp16_exceptions(graph, scheme(graph, "dla")) == ()

    def test_for_the_command_line(self) -> None:
        assert layer_precisions(["/a/Conv", "b:0 x"]) == "/a/Conv:fp16,b:0 x:fp16"
        assert layer_precisions([]) == ""

    @pytest.mark.parametrize("name", ["a,b", "it's", "conv*", ""])
    def test_a_name_that_the_command_line_would_misread(self, name: str) -> None:
        with pytest.raises(CalibrationError, match="cannot be named"):
            layer_precisions(["ok", name])
