"""Building in steps: each cached under what it depends on, checked by what it promises, and told as it happens.

Step → Runner.do(step) → Product        files, and one line of evidence that the promise is kept
"""

from edgert.compiler.event import Event, Tell
from edgert.compiler.step import Product, Step, digest_of

__all__ = ["Event", "Product", "Step", "Tell", "digest_of"]
