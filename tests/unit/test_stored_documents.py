"""The bytes of each stored document, and what its reader says about damaged ones: both stay from release to release.

`data/documents/NAME.json` holds them for each name in `document_samples.py`.
"""

from __future__ import annotations

import json

import pytest
from document_damages import GOLDEN, made
from document_samples import SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_a_stored_document_has_the_golden_bytes_and_its_reader_finds_the_same_damages(name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    found = made(name)
    assert found["written"] == golden["written"]
    assert found["damaged"] == golden["damaged"]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_read_is_written_with_the_same_bytes(name: str) -> None:
    sample = SAMPLES[name]
    for text in json.loads((GOLDEN / f"{name}.json").read_text())["written"].values():
        value = sample.read(sample.pack(text.encode()))
        assert sample.unpack(sample.write(value)).decode() == text
