"""The offset map sends a consumer to its next message, whatever offsets the archive lacks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.restore.offset_map import OffsetMap, Run


@st.composite
def maps(draw: st.DrawFn) -> tuple[list[int], int, list[Run]]:
    """Draw the archived offsets of messages, the first target offset, and the runs, cut at random into parts."""
    offsets = sorted(draw(st.sets(st.integers(0, 60), max_size=40)))
    first_target = draw(st.integers(0, 5))
    runs: list[Run] = []
    for index, offset in enumerate(offsets):
        joins = bool(runs) and runs[-1].offset + runs[-1].messages == offset and not draw(st.booleans())
        if joins:
            runs[-1] = runs[-1]._replace(messages=runs[-1].messages + 1)
        else:
            runs.append(Run(offset, first_target + index, 1))
    return offsets, first_target, draw(st.permutations(runs))


@given(maps(), st.integers(0, 70))
def test_offset_is_translated_to_the_first_message_from_there_on(
    drawn: tuple[list[int], int, list[Run]], at: int
) -> None:
    offsets, first_target, runs = drawn
    expected = first_target + sum(offset < at for offset in offsets)
    assert OffsetMap(runs, first_target + len(offsets)).translate(at) == expected


@given(maps(), st.integers(0, 70), st.integers(1, 30))
def test_overlapping_parts_of_rivals_translate_alike(
    drawn: tuple[list[int], int, list[Run]], at: int, cut: int
) -> None:
    offsets, first_target, runs = drawn
    shorter = [run._replace(messages=min(run.messages, cut)) for run in runs]
    end = first_target + len(offsets)
    assert OffsetMap([*runs, *shorter], end).translate(at) == OffsetMap(runs, end).translate(at)
