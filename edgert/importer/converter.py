"""``python -m edgert.importer.converter FOLDER`` converts one model in this process.

FOLDER has the request; the ONNX file, the example inputs, the source's outputs and the answer are written there.
"""

import json
import sys
from pathlib import Path

from edgert.errors import EXIT_ERROR, EXIT_OK, EdgertError
from edgert.importer import conversion_process as process


def main(folder: Path) -> int:
    """Convert the requested model. Returns the exit code."""
    request = process.read_request(folder)
    try:
        if request.kind in ("program", "function", "named"):
            from edgert.importer.torch_model import convert_torch

            answer = convert_torch(request, folder)
        else:
            answer = process.convert_tensorflow(request, folder)
    except EdgertError as error:
        answer = {"error": error.to_json()}
    (folder / process.ANSWER).write_text(json.dumps(answer), encoding="utf-8")
    return EXIT_ERROR if "error" in answer else EXIT_OK


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
