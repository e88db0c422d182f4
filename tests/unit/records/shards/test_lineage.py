from hypothesis import given
from hypothesis import strategies as st

from waybill.records.shards.lineage import Shard, by_id, parents_first


def shard(shard_id: str, *parents: str, last_sequence: str = "") -> Shard:
    return Shard(shard_id, 0, 9, "1", last_sequence, *parents)


def test_a_merge_has_two_parents_and_a_shard_of_the_creation_none() -> None:
    assert shard("c", "a", "b").parents == ("a", "b")
    assert shard("c", "a").parents == ("a",)
    assert shard("c").parents == ()


def test_a_shard_with_a_last_sequence_number_is_closed() -> None:
    assert shard("a", last_sequence="7").is_closed
    assert not shard("a").is_closed


@given(st.lists(st.sets(st.integers(0, 30), max_size=2), max_size=30), st.randoms())
def test_every_shard_comes_once_and_after_its_listed_parents(parents: list[set[int]], random: object) -> None:
    names = [f"s{number:02}" for number in range(len(parents))]
    random.shuffle(names)  # type: ignore[attr-defined]
    shards = by_id(
        shard(names[number], *sorted(names[each] for each in chosen if each < number) or ["expired"])
        for number, chosen in enumerate(parents)
    )
    order = [each.shard_id for each in parents_first(shards)]
    assert sorted(order) == sorted(shards)
    for each in shards.values():
        for parent in each.parents:
            assert parent == "expired" or order.index(parent) < order.index(each.shard_id)
