"""Damages records in many ways, with valid CRCs, and decodes them. As a script, it runs one long drill."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from waybill.base.errors import CorruptBatch
from waybill.records.batches import HEADER_BYTES, Codec, read_header
from waybill.records.batches.compression import compress
from waybill.records.batches.decode import decode, decode_offsets
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import pack_batch

WHERE = "backup/flights/1_0_00000000000000000000.kafka"

RECORDS = [
    Record(10, 1_700_000_000_000, b"key", b"value", (("a", b"1"), ("b", None), ("", b""))),
    Record(12, 1_700_000_000_700, None, b"x" * 100),
    Record(13, -1, b"", None, (("trace", b"y" * 70),)),
    Record(20, 1_700_000_100_000, b"k" * 200, b""),
]


def damaged(section: bytes, chance: random.Random) -> bytes:
    """Return a records section with bits flipped, bytes replaced, removed or inserted, or its end removed."""
    body = bytearray(section)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(body))
        match chance.randrange(5):
            case 0 | 1:
                body[at] ^= 1 << chance.randrange(8)
            case 2:
                body[at] = chance.choice([0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF])
            case 3:
                body[at : at + 5] = bytes([0xFF] * chance.randrange(1, 11)) + bytes([chance.randrange(16)])
            case 4:
                del body[at : at + chance.choice([1, 2, 1000])]
                body = body or bytearray(1)
    return bytes(body)


def drill(*, seed: int, rounds: int) -> Counter[str]:
    """Decode damaged batches with valid CRCs and count the outcomes. Raise any error but `CorruptBatch`."""
    chance = random.Random(seed)
    original = encode_batch(RECORDS, base_offset=5, next_offset=25)
    header, section = read_header(original, 0, WHERE), original[HEADER_BYTES:]
    outcomes: Counter[str] = Counter()
    for _ in range(rounds):
        codec = chance.choice([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD])
        changed = header._replace(attributes=int(codec), record_count=chance.choice([4, 4, 4, 1, 5]))
        sound = encode_batch([Record(100, 0, None, b"sound")])
        data = pack_batch(changed, compress(codec, damaged(section, chance))) + sound
        try:
            offsets = list(decode_offsets(data, where=WHERE))
            batches = list(decode(data, where=WHERE, max_bytes=chance.choice([1, 100, 1 << 20])))
        except CorruptBatch as error:
            assert (error.where, error.position_bytes) == (WHERE, 0), error  # noqa: PT017
            outcomes["refused"] += 1
        else:
            for batch in batches:
                batch.validate(full=True)
            rows = np.concatenate([batch.column("offset").to_numpy() for batch in batches])
            assert rows.tolist() == np.concatenate(offsets).tolist()
            assert rows.tolist() == sorted(set(rows.tolist()))
            outcomes["decoded"] += 1
    return outcomes


if __name__ == "__main__":
    print(dict(drill(seed=2, rounds=10_000)))
