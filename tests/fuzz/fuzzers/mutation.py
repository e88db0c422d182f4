"""Changed inputs from a corpus: bytes flipped, replaced, removed, repeated, moved, or taken from another input."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

EDGES = [0, 1, 2, 7, 8, 127, 128, 255, 256, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1]
"""Numbers at which widths and signs change. Each also exists one lower and negative."""

CHARACTERS = ["\0", "\x1f", "\x7f", "\x85", "\xa0", "ä", "ß", "İ", "\u2028", "\ud7ff", "\ue000", "\ufeff", "\uffff"]
CHARACTERS += ["\U00010000", "😀", "\U0010ffff", "🇩🇪", "٣", "e\u0301", "\u202e"]
"""Characters that are treated in special ways by some library."""

Make = Callable[[random.Random], bytes]


def varint(number: int) -> bytes:
    """Return an unsigned LEB128 number of 64 bits, as Protobuf, Avro and Kafka use them."""
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def edge(chance: random.Random) -> int:
    """Return a number at which something may change."""
    number = chance.choice(EDGES) + chance.choice([-1, 0, 0, 1])
    return -number if chance.random() < 0.3 else number


def edge_bytes(chance: random.Random) -> bytes:
    """Return such a number in one of the encodings that binary formats use."""
    number = edge(chance)
    match chance.randrange(5):
        case 0:
            return varint(number)
        case 1:
            return varint(number << 1 ^ number >> 63)
        case 2:
            return struct.pack(">I", number & 0xFFFFFFFF)
        case 3:
            return struct.pack("<I", number & 0xFFFFFFFF)
        case _:
            return struct.pack(">Q", number & 0xFFFFFFFFFFFFFFFF)


def text(chance: random.Random, size: int = 12, alphabet: str = "aZ09._- /:%+\"'\\") -> str:
    """Return a text of plain and special characters. It holds no lone surrogate: it can be encoded."""
    return "".join(
        chance.choice(CHARACTERS) if chance.random() < 0.15 else chance.choice(alphabet)
        for _ in range(chance.randrange(size + 1))
    )


class Mutator:
    """Makes inputs from a corpus. `tokens`: pieces that the format treats in special ways."""

    def __init__(self, corpus: Sequence[bytes], tokens: Sequence[bytes] = (), *, unchanged: float = 0.1) -> None:
        """`unchanged`: the share of inputs that stay as they are."""
        self._corpus = list(corpus)
        self._tokens = list(tokens)
        self._unchanged = unchanged

    def __call__(self, chance: random.Random) -> bytes:
        """Return one input."""
        return self.changed(chance.choice(self._corpus), chance)

    def changed(self, value: bytes, chance: random.Random) -> bytes:
        """Return a value, most often with one to five changes."""
        if chance.random() < self._unchanged:
            return value
        body = bytearray(value)
        for _ in range(chance.choice([1, 1, 1, 2, 3, 5])):
            self._change(body, chance)
        return bytes(body)

    def _change(self, body: bytearray, chance: random.Random) -> None:
        at = chance.randrange(len(body) + 1)
        length = chance.choice([1, 1, 2, 4, 8, 30])
        match chance.randrange(9):
            case 0 if at < len(body):
                body[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(body):
                body[at] = chance.choice([0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF, chance.randrange(256)])
            case 2:
                del body[at : at + length]
            case 3:
                body[at:at] = body[at : at + length] * chance.choice([1, 1, 2, 10])
            case 4:
                new = edge_bytes(chance)
                body[at : at + chance.choice([0, len(new)])] = new
            case 5 | 6 if self._tokens:
                new = chance.choice(self._tokens)
                body[at : at + chance.choice([0, 0, 1, len(new)])] = new
            case 7:
                other = chance.choice(self._corpus)
                start = chance.randrange(len(other) + 1)
                body[at : at + chance.choice([0, length])] = other[start : start + length]
            case _:
                del body[at:]
