"""Numbers in files that Python takes for digits and cannot convert, or that are too long for it: never a bug."""

from pathlib import Path

import pytest

from edgert.backend.tensorrt.library import release_of
from edgert.config.document import read_document
from edgert.dataset.labels import class_index
from edgert.errors import EdgertError
from edgert.quantization.lowering.trt_form import version_number
from edgert.stages.crop import check_classes
from edgert.stages.source.camera import device_path
from edgert.stages.zones.areas import class_numbers

STRANGE = ["²", "9" * 5_000]


@pytest.mark.parametrize("text", STRANGE)
def test_a_class_of_a_strange_number_is_a_name_that_nobody_has(text: str) -> None:
    with pytest.raises(EdgertError, match="no class"):
        class_numbers([text], ["car"], "stages.yard")
    with pytest.raises(EdgertError, match="no class"):
        check_classes([text], ["car"], "stages.cut")
    with pytest.raises(EdgertError, match="is not a class index"):
        class_index(text, ["car"], True, "labels.csv:2")


@pytest.mark.parametrize("text", STRANGE)
def test_a_strange_number_of_a_device_or_a_version_is_refused(text: str) -> None:
    with pytest.raises(EdgertError, match="is no camera"):
        device_path(f"usb:{text}", "stages.cam")
    with pytest.raises(EdgertError, match="is no TensorRT version"):
        release_of(f"{text}.3")
    with pytest.raises(EdgertError, match="is not a TensorRT version"):
        version_number(f"10.{text}.0")


@pytest.mark.parametrize("text", STRANGE)
def test_a_strange_entry_of_a_list_goes_nowhere(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.yaml").write_text("stages:\n  cam: {crop: [0, 0, 1, 1]}\n")
    with pytest.raises(EdgertError, match="names no key"):
        read_document(tmp_path / "p.yaml", [f"stages.cam.crop.{text}=1"])
