"""Backfills on a real archive and catalog; tasks run in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from backfill_scenes import (
    FIRST,
    SECOND,
    TP0,
    TP1,
    all_first,
    build,
    check,
    promote,
    put,
    undo,
    use,
    with_second,
)
from partition_scenes import Scene

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """A table that the first parser filled, in two runs; the second parser is configured now."""
    made = make_scene(parser=FIRST)
    put(made, TP0, 0, 40)
    put(made, TP1, 100, 120)
    made.run()
    put(made, TP0, 40, 60)
    put(made, TP1, 120, 130)
    made.run()
    use(made, SECOND)
    return made


def test_main_stays_until_the_promotion_and_then_shows_the_range_parsed_again(scene: Scene) -> None:
    before = all_first(scene)
    backfill = build(scene, "flights/0@10-44", "flights/1@110-")
    check(scene, before)
    after = with_second(before, [(TP0, 10, 45), (TP1, 110, 130)])
    branch = f"backfill_{backfill.id}"
    on_branch = [
        sum(t.scan(snapshot_id=t.metadata.refs[branch].snapshot_id).to_arrow().num_rows for t in (scene.table,))
    ]
    assert on_branch == [len([key for key, parser in after.items() if key[1] % (7 if parser == "first" else 5)])]
    assert promote(scene, backfill)
    check(scene, after)
    assert not promote(scene, backfill)  # a retry finds it done
    assert undo(scene, backfill)
    check(scene, before)
    assert promote(scene, backfill)
    check(scene, after)
