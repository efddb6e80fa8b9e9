"""``python -m edgert.importer.converter FOLDER`` converts one model in this process.

FOLDER has the request; the ONNX file, the example inputs and the source's outputs are written there.
"""

import sys
from pathlib import Path

from edgert.errors import EXIT_ERROR, EXIT_OK, EdgertError
from edgert.importer.conversion_process import read_request, write_error


def main(folder: Path) -> int:
    """Convert the requested model. Returns the exit code."""
    request = read_request(folder)
    try:
        if request.kind in ("program", "function", "named"):
            from edgert.importer.torch_model import convert_torch

            convert_torch(request, folder)
        else:
            from edgert.importer.conversion_process import convert_tensorflow

            convert_tensorflow(request, folder)
    except EdgertError as error:
        write_error(error, folder)
        return EXIT_ERROR
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
