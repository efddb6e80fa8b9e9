"""Damage as flash cards, power cuts and bad cables do it: bits that flip, blocks that are zero or of others, ends."""

from random import Random


def damaged(data: bytes, rng: Random) -> bytes:
    if not data:
        return data
    content, at = bytearray(data), rng.randrange(len(data))
    kind = rng.choice(("bit", "bits", "zeros", "noise", "moved", "cut", "first"))
    size = min(rng.choice((1, 16, 512, 4096, 65536)), len(data) - at)
    if kind == "bit":
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "bits":
        for _ in range(rng.randint(2, 200)):
            content[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        content[at : at + size] = bytes(size)
    elif kind == "noise":
        content[at : at + size] = rng.randbytes(size)
    elif kind == "moved":
        other = rng.randrange(len(data) - size + 1)
        content[at : at + size] = data[other : other + size]
    elif kind == "first":  # where a file says what it is
        size = min(rng.choice((1, 100, 1024, 4096)), len(data))
        content[:size] = rng.choice((bytes(size), rng.randbytes(size)))
    else:
        del content[at:]
    return bytes(content)
