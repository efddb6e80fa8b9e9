"""``python -m edgert`` is ``edgert``."""

from edgert.cli import main

main()
