"""Hashes of keys equal those of SipHash's reference implementation; ids that Waybill assigned are not keys."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.tables.dedup.keys import KeyHashes, exclude_assigned_ids, hash_keys

_SECRET = bytes(range(16))
_MASK = 2**64 - 1


def _digests(hashes: KeyHashes) -> list[bytes | None]:
    halves = zip(hashes.hi.tolist(), hashes.lo.tolist(), hashes.present.tolist(), strict=True)
    return [struct.pack("<QQ", hi, lo) if present else None for hi, lo, present in halves]


def _siphash128(message: bytes, secret: bytes) -> bytes:
    """Compute SipHash-2-4 as in its paper, with the 128-bit output of the reference implementation."""

    def rounds(v: list[int], count: int) -> None:
        for _ in range(count):
            for a, b, turn, half in ((0, 1, 13, True), (2, 3, 16, False), (0, 3, 21, False), (2, 1, 17, True)):
                v[a] = (v[a] + v[b]) & _MASK
                v[b] = ((v[b] << turn | v[b] >> (64 - turn)) & _MASK) ^ v[a]
                if half:
                    v[a] = (v[a] << 32 | v[a] >> 32) & _MASK

    k0, k1 = struct.unpack("<QQ", secret)
    start = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [word ^ k for word, k in zip(start, (k0, k1 ^ 0xEE, k0, k1), strict=True)]
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(v, 4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(v, 4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


def test_hashes_equal_the_vectors_of_the_reference_implementation() -> None:
    """`vectors_sip128` of github.com/veorq/SipHash, vectors.h: hashes of the messages `00 01 02 …` of 0 to 63 bytes.

    OpenSSL 3 gives the same: openssl mac -macopt size:16 -macopt hexkey:000102…0f -in FILE SIPHASH.
    """
    digests = _digests(hash_keys([pa.array([bytes(range(n)) for n in range(64)])], _SECRET))
    assert [digests[n].hex() for n in (0, 1, 15, 63)] == [
        "a3817f04ba25a8e66df67214c7550293",
        "da87c1d86b99af44347659119b22fc45",
        "5493e99933b0a8117e08ec0f97cfc3d9",
        "5150d1772f50834a503e069a973fbd7c",
    ]
    whole = "ecfaa9fe47ff788fa834a9863ea2715a2880cd37d2b8c3c194402838428119b9"
    assert hashlib.sha256(b"".join(digests)).hexdigest() == whole


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=40), max_size=20), st.binary(min_size=16, max_size=16), st.data())
def test_hashes_do_not_depend_on_slices_or_offset_width(
    values: list[bytes | None], secret: bytes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(values)))
    column = pa.array(values, pa.binary())[start:]
    expected = [None if value is None else _siphash128(value, secret) for value in values[start:]]
    assert _digests(hash_keys([column], secret)) == expected
    assert _digests(hash_keys([column.cast(pa.large_binary())], secret)) == expected


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["grün", None, "", "x" * 300]),
        pa.array(["grün", None, "", "x" * 300], pa.large_string()),
        pa.array(["grün", None, "", "x" * 300]).dictionary_encode(),
        pa.array(["grün", None, "", "x" * 300], pa.string_view()),
        pa.array(["no", "grün", None, "", "x" * 300, "no"])[1:5],
        pa.array(["grün".encode(), None, b"", b"x" * 300]),
    ],
    ids=["string", "large", "dictionary", "view", "slice", "binary"],
)
def test_text_is_hashed_as_utf8_in_every_arrow_layout(column: pa.Array) -> None:
    expected = [
        _siphash128("grün".encode(), _SECRET),
        None,
        _siphash128(b"", _SECRET),
        _siphash128(b"x" * 300, _SECRET),
    ]
    assert _digests(hash_keys([column], _SECRET)) == expected


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([-7], pa.int64()), "-7"),
        (pa.array([-7], pa.int32()), "-7"),
        (pa.array([True]), "true"),
        (pa.array([19_000], pa.date32()), "2022-01-08"),
        (pa.array([1], pa.timestamp("us", "UTC")), "1970-01-01 00:00:00.000001Z"),
        (pa.array([b"0123456789abcdef"], pa.binary(16)), "0123456789abcdef"),
        (pa.array([b"0123456789abcdef"], pa.uuid()), "0123456789abcdef"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_other_types_are_hashed_as_the_text_that_arrow_casts_them_to(column: pa.Array, text: str) -> None:
    assert _digests(hash_keys([column], _SECRET)) == [_siphash128(text.encode(), _SECRET)]


def test_hash_of_several_columns_is_the_hash_of_their_hashes() -> None:
    columns = [pa.array(["a", "ab", None, "a"]), pa.array([12, 2, 1, None])]
    digests = _digests(hash_keys(columns, _SECRET))
    assert digests[:2] == [
        _siphash128(_siphash128(b"a", _SECRET) + _siphash128(b"12", _SECRET), _SECRET),
        _siphash128(_siphash128(b"ab", _SECRET) + _siphash128(b"2", _SECRET), _SECRET),
    ]
    assert digests[2:] == [None, None]


@pytest.mark.parametrize("column", [pa.array([], pa.string()), pa.nulls(3, pa.string()), pa.nulls(2)])
def test_empty_and_null_columns_have_no_keys(column: pa.Array) -> None:
    assert _digests(hash_keys([column], _SECRET)) == [None] * len(column)
    assert _digests(hash_keys([column, column], _SECRET)) == [None] * len(column)


_PLACES = [
    # id, topic, partition, offset, whether Waybill assigned the id to this row
    ("flights/3@120", "flights", 3, 120, True),
    ("flights/3@0", "flights", 3, 0, True),
    ("flights/13@9223372036854775807", "flights", 13, 2**63 - 1, True),
    ("flights/3@120", "flights", 3, 121, False),
    ("flights/3@120", "flights", 4, 120, False),
    ("flights/3@120", "flight", 3, 120, False),
    ("xflights/3@120", "flights", 3, 120, False),
    ("flights/3@0120", "flights", 3, 120, False),
    ("flights/3@20", "flights", 3, 120, False),
    ("flights/3@1120", "flights", 3, 120, False),
    ("flights/13@120", "flights", 3, 120, False),
    ("120", "flights", 3, 120, False),
    ("@120", "flights", 3, 120, False),
    ("/3@120", "flights", 3, 120, False),
    ("3@120", "flights", 3, 120, False),
    ("", "flights", 3, 0, False),
    ("e4b2c1f0-0d4e-4a9c-8a51-9f6f0a1b2c3d", "flights", 3, 3, False),
]


@pytest.mark.parametrize("cut", [0, 5])
def test_assigned_id_is_not_a_key_in_its_own_row_only(cut: int) -> None:
    ids, topics, partitions, offsets, assigned = zip(*_PLACES, strict=True)
    rows = pa.RecordBatch.from_arrays(
        [pa.array(ids), pa.array(topics), pa.array(partitions, pa.int32()), pa.array(offsets)],
        names=["message_id", "topic", "partition", "offset"],
    ).slice(cut)
    hashes = hash_keys([rows.column("message_id")], _SECRET)
    assert exclude_assigned_ids(hashes, ["message_id"], rows).present.tolist() == [not a for a in assigned[cut:]]
    assert hashes.present.all(), "the input hashes were changed"
    assert exclude_assigned_ids(hashes, ["message_id", "topic"], rows).present.all()
    assert exclude_assigned_ids(hashes, ["topic"], rows).present.all()


def test_row_with_a_null_key_has_no_key_after_excluding_assigned_ids() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"message_id": [None, "a"], "topic": ["t", "t"], "partition": np.array([0, 0], np.int32), "offset": [1, 2]}
    )
    hashes = hash_keys([rows.column("message_id")], _SECRET)
    assert exclude_assigned_ids(hashes, ["message_id"], rows).present.tolist() == [False, True]
