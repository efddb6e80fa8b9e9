"""Whether a container is well: its pipeline answers at EDGERT_HEALTH, or, without that, edgert can run here at all.

The exit code tells, as HEALTHCHECK wants it: 0 or 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request

WAIT_S = 10.0


def main(url: str) -> int:
    """Asks the HTTP sink of the pipeline, ``http://localhost:8080/healthz``; else ``edgert doctor``."""
    if not url:
        doctor = ["edgert", "doctor"]
        return min(subprocess.run(doctor, stdout=subprocess.DEVNULL, check=False).returncode, 1)  # noqa: S603
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:  # noqa: S310 - whoever starts the container says it
            return int(answer.status != 200)
    except (urllib.error.URLError, TimeoutError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(os.environ.get("EDGERT_HEALTH", "")))
