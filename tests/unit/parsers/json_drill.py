"""Damages JSON messages in many ways and reads them by the compiled loop. As a script, it runs one long drill."""

from __future__ import annotations

import random

import pyarrow as pa

from waybill.config.models import JsonParser
from waybill.parsers.plain_json import PlainJsonReader

CONFIG = JsonParser.model_validate({"event_time": {"field": "a.at", "format": "epoch_ms"}, "message_id": "id"})
MESSAGES = [
    b'{"a":{"at":1700000000000,"x":[1,{"at":2}]},"id":"0123456789abcdef","n":-1.5e-3,"t":true}',
    b' {"id" : 7, "text": "a \\"quoted\\" \\u00e9 word", "a": {"at": "1700000000000"}, "e": {}, "l": [[], null]} ',
    b'{"a":{"at":1}}',
]
BYTES = b'"{}[]:,0123456789eE+-.\\utfn \x00\x1f\xff'


def damaged(message: bytes, chance: random.Random) -> bytes:
    """Return a message with some bytes replaced, removed or inserted, or cut short."""
    body = bytearray(message)
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        at = chance.randrange(len(body) + 1)
        match chance.randrange(4):
            case 0 | 1:
                body[at : at + 1] = bytes([chance.choice(BYTES)])
            case 2:
                del body[at : at + chance.choice([1, 2, 1000])]
            case 3:
                body[at:at] = bytes(chance.choices(BYTES, k=3))
    return bytes(body)


def drill(*, seed: int, rounds: int) -> int:
    """Read damaged messages in batches, and return the number of messages that the loop has read."""
    chance = random.Random(seed)
    reader = PlainJsonReader.for_fields(CONFIG.event_time, CONFIG.message_id)
    assert reader is not None
    read = 0
    for _ in range(rounds):
        values = [damaged(chance.choice(MESSAGES), chance) for _ in range(chance.choice([1, 2, 5]))]
        _, rows = reader.read(pa.array(values, pa.binary()))
        read += len(rows)
    return read


if __name__ == "__main__":
    print(drill(seed=2, rounds=20_000), "messages were read")
