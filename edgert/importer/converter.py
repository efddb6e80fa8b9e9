"""Converts one model in this process: ``python -m edgert.importer.converter FOLDER``.

FOLDER has the request and gets the ONNX file, the example inputs and the outputs of the source. A framework's
threads, memory and crashes stay here; nothing of edgert is imported that needs another package, so that the process may
be any Python that has the framework.
"""

import sys
from pathlib import Path

from edgert.errors import EXIT_ERROR, EXIT_OK, EdgertError
from edgert.importer.conversion_process import Request, read_request, write_error


def main(folder: Path) -> int:
    """Converts; returns the exit code."""
    try:
        convert(read_request(folder), folder)
    except EdgertError as error:
        write_error(error.to_json(), folder)
        return EXIT_ERROR
    return EXIT_OK


def convert(request: Request, folder: Path) -> None:
    """By whichever framework the source is of."""
    if request.kind in ("program", "function"):
        from edgert.importer.torch_model import convert_torch

        convert_torch(request, folder)
    else:
        from edgert.importer.tensorflow_model import convert_tensorflow

        convert_tensorflow(request, folder)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
