"""Names of stored things: a built name can be parsed, sorts in order, and stays below its prefix."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waybill.base.errors import ConfigError
from waybill.config import names
from waybill.config.names import BackupName, Extension, FileExtension, SinkPeriod, TopicPartition
from waybill.services.coordination.paths import ZkPaths

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda t: t not in {".", ".."})
SEGMENTS = st.from_regex(r"[A-Za-z0-9!_.*'()=-]{1,20}", fullmatch=True).filter(lambda s: s not in {".", ".."})
PREFIXES = st.lists(SEGMENTS, max_size=3).map("/".join)
NUMBERS = st.integers(0, 10_000)
OFFSETS = st.integers(0, names.MAX_OFFSET)
BACKUPS = st.builds(BackupName, TOPICS, NUMBERS, NUMBERS, OFFSETS, st.sampled_from(Extension))


@given(BACKUPS, PREFIXES)
def test_index_key_belongs_to_its_backup_object(name: BackupName, prefix: str) -> None:
    key, token = name.key(prefix), "0123456789abcdef" * 2
    found = names.index_key(key, token)
    assert found.startswith(names.index_prefix(key))
    assert found.startswith(names.indexes_prefix(prefix))
    assert not found.startswith(names.archive_prefix(prefix))
    assert (
        names.chain_of_key(found)
        == names.chain_of_key(key)
        == (TopicPartition(name.topic, name.partition), name.generation)
    )
    following = BackupName(name.topic, name.generation, name.partition, (name.first_offset + 1) % names.MAX_OFFSET)
    assert not found.startswith(names.index_prefix(following.key(prefix)))


@pytest.mark.parametrize("token", ["", "../" * 10 + "ab", "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n"])
def test_index_key_refuses_a_malformed_token(token: str) -> None:
    with pytest.raises(ValueError, match="is not a token"):
        names.index_key("p/backup/t/1_0_00000000000000000000.txt", token)


def test_backup_keys_end_with_their_extension_and_sort_by_offset() -> None:
    keys = {extension: BackupName("t", 1, 0, 7, extension).key("p") for extension in Extension}
    assert set(keys.values()) == {f"p/backup/t/1_0_{7:020d}.{end}" for end in ("kafka", "seq", "txt", "txt.gz")}
    assert [extension.is_indexed for extension in keys] == [False, True, True, True]
    assert all(key < names.offset_prefix("p", "t", 1, 0, 7) + "~" for key in keys.values())
    assert all(key < names.offset_prefix("p", "t", 1, 0, 8) for key in keys.values())


@given(BACKUPS, PREFIXES)
@example(BackupName("backup", 1, 0, 0), "backup/backup")
def test_backup_name_survives_a_round_trip(name: BackupName, prefix: str) -> None:
    assert BackupName.parse(name.key(prefix)) == name


@given(BACKUPS, BACKUPS, PREFIXES)
def test_different_backup_names_have_different_keys(a: BackupName, b: BackupName, prefix: str) -> None:
    assert (a.key(prefix) == b.key(prefix)) == (a == b)


@given(st.text(max_size=60) | st.from_regex(r"backup/t/[0-9]{1,3}_[0-9]{1,3}_[0-9]{20}\.kafka", fullmatch=True))
def test_parsed_backup_key_equals_the_key_of_its_name(key: str) -> None:
    """Each object has one name: a key that spells the same numbers differently is no backup object."""
    try:
        name = BackupName.parse(key)
    except ValueError:
        return
    assert name.key(key[: -len(name.key(""))]) == key


@given(TOPICS, NUMBERS, NUMBERS, st.lists(OFFSETS, min_size=2), PREFIXES)
def test_keys_of_a_chain_sort_by_offset(
    topic: str, generation: int, partition: int, offsets: list[int], prefix: str
) -> None:
    keys = [BackupName(topic, generation, partition, offset).key(prefix) for offset in offsets]
    assert [BackupName.parse(key).first_offset for key in sorted(keys)] == sorted(offsets)


@given(BACKUPS, NUMBERS, NUMBERS, PREFIXES)
@example(BackupName("t", 1, 11, 0), 1, 1, "")
def test_chain_prefix_matches_only_the_objects_of_its_chain(
    name: BackupName, generation: int, partition: int, prefix: str
) -> None:
    belongs = (name.generation, name.partition) == (generation, partition)
    chain = names.chain_prefix(prefix, name.topic, generation, partition)
    assert name.key(prefix).startswith(chain) == belongs


@pytest.mark.parametrize(
    "key",
    [
        "backup/t/1_0_0.kafka",
        "backup/t/01_0_00000000000000000000.kafka",
        "backup/t/1_00_00000000000000000000.kafka",
        "backup/t/1_٣_00000000000000000000.kafka",
        "backup/t/1_0_00000000000000000000.kafka.tmp",
        "backup/t/1_0_99999999999999999999.kafka",
        "backup/../1_0_00000000000000000000.kafka",
        "other/t/1_0_00000000000000000000.kafka",
        "t/1_0_00000000000000000000.kafka",
        "",
    ],
)
def test_backup_name_refuses_other_keys(key: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a backup object"):
        BackupName.parse(key)


@pytest.mark.parametrize("name", [BackupName("t", 1, 0, -1), BackupName("t", 1, -1, 0), BackupName("t", -1, 0, 0)])
def test_backup_key_refuses_negative_numbers(name: BackupName) -> None:
    with pytest.raises(ValueError, match=r"is no offset|must not be negative"):
        name.key("")


# --- hostile topics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "a/b", "../../etc", "a b", "a\n", "a\x00", "ä", "t" * 250, "%2e%2e", "a\\b", "a?b", "a#b"]
)
def test_names_refuse_a_topic_that_kafka_does_not_allow(topic: str) -> None:
    tp = TopicPartition(topic, 0)
    for build in (
        lambda: BackupName(topic, 1, 0, 0).key("p"),
        lambda: names.backup_prefix("p", topic),
        lambda: ZkPaths("waybill", "s", 1).committed_offset(tp),
        lambda: ZkPaths("waybill", "s", 1).lock(tp),
        lambda: ZkPaths("waybill", "s", 1).stop(tp),
    ):
        with pytest.raises(ConfigError, match="is not a legal Kafka topic name"):
            build()


TP_BUILDERS: dict[str, Callable[[str, TopicPartition], str]] = {
    "backup": lambda prefix, tp: BackupName(tp.topic, 1, tp.partition, 7).key(prefix),
    "backup prefix": lambda prefix, tp: names.backup_prefix(prefix, tp.topic),
    "chain prefix": lambda prefix, tp: names.chain_prefix(prefix, tp.topic, 1, tp.partition),
    "offset prefix": lambda prefix, tp: names.offset_prefix(prefix, tp.topic, 1, tp.partition, 7),
    "index": lambda prefix, tp: names.index_key(BackupName(tp.topic, 1, tp.partition, 7).key(prefix), "0" * 32),
    "gap": lambda prefix, tp: names.GapName(tp.topic, 1, tp.partition, 7).key(prefix),
    "gap of a truncation": lambda prefix, tp: names.GapName(tp.topic, 1, tp.partition, 7, 9).key(prefix),
    "gap prefix": lambda prefix, tp: names.gap_prefix(prefix, tp.topic, 1, tp.partition),
    "start": lambda prefix, tp: names.chain_start_key(prefix, tp.topic, 1, tp.partition),
    "stream origin": lambda prefix, tp: names.stream_origin_key(prefix, tp.topic, 1),
    "shard start": lambda prefix, tp: names.shard_start_key(prefix, tp.topic, 1, "shardId-000000000001"),
    "shard starts prefix": lambda prefix, tp: names.shard_starts_prefix(prefix, tp.topic, 1),
}
"""Every function that builds an object key from a topic."""

NODE_BUILDERS: dict[str, Callable[[ZkPaths, TopicPartition], str]] = {
    "committed offset": ZkPaths.committed_offset,
    "lock": ZkPaths.lock,
    "stop": ZkPaths.stop,
}
"""Every function that builds a ZooKeeper path from a topic."""

HOSTILE = (
    st.text(max_size=260)
    | st.text("./%a\\\n\x00 ", max_size=12)
    | st.sampled_from(
        ["..", "../../etc", "a/b", "/a", "a/", "%2e%2e", "..%2f", "a\n", "\u2024\u2024", "\uff0f", "-rf", "*", "~"]
    )
)


@given(HOSTILE | TOPICS, PREFIXES, NUMBERS)
@example("." * 249, "a", 0)
@example("...", "", 0)
@example("..", "a", 0)
@example("a/../../b", "a/b", 0)
def test_names_of_any_topic_are_refused_or_stay_below_their_prefix(topic: str, prefix: str, partition: int) -> None:
    """The topic is refused, or it is one unchanged segment of the key or path, below the prefix."""
    tp = TopicPartition(topic, partition)
    paths = ZkPaths("root", "stream", 1)
    built = {
        **{what: partial(build, prefix, tp) for what, build in TP_BUILDERS.items()},
        **{what: partial(build, paths, tp) for what, build in NODE_BUILDERS.items()},
    }
    for what, build in built.items():
        if not names.is_topic(topic):
            with pytest.raises((ConfigError, ValueError)):
                build()
            continue
        above, name = (paths.base, build()) if what in NODE_BUILDERS else (prefix, build())
        start = f"{above}/" if above else ""
        assert name.startswith(start), what
        kind, found, *rest = name.removeprefix(start).split("/")
        assert kind in {"backup", "index", "gaps", "starts", "shards", "offsets", "locks", "stops"}
        assert found == topic
        assert len(rest) == 1
        assert rest[0] not in {".", ".."}
        assert len(name.encode()) <= 1024  # S3's limit


@given(HOSTILE)
def test_parsing_never_returns_a_topic_that_kafka_does_not_allow(topic: str) -> None:
    """Listings also return keys that other programs wrote."""
    if names.is_topic(topic):
        return
    end = "1_0_00000000000000000007"
    for parse in (
        lambda: BackupName.parse(f"p/backup/{topic}/{end}.kafka"),
        lambda: names.GapName.parse(f"p/gaps/{topic}/{end}.json"),
        lambda: TopicPartition.parse(f"{topic}/0"),
    ):
        try:
            found = parse()
        except ValueError:
            continue
        found_topic = found.topic
        assert names.is_topic(found_topic)
        assert found_topic == topic.rpartition("/")[2]  # the last segment, which is the only one that parse() reads
    found_chain = names.chain_of_key(f"p/backup/{topic}/{end}.kafka")
    assert found_chain is None or names.is_topic(found_chain[0].topic)


@given(TOPICS, PREFIXES)
@example("." * 249, "a")
@example("...", "")
def test_key_of_every_legal_topic_stays_below_its_prefix(topic: str, prefix: str) -> None:
    key = BackupName(topic, 1, 0, 0).key(prefix)
    start = f"{prefix}/backup/" if prefix else "backup/"
    assert key.startswith(start)
    assert key.removeprefix(start).split("/")[0] == topic
    assert not {"", ".", ".."} & set(key.split("/"))
    assert len(key.encode()) <= 1024  # S3's limit


# --- topic-partitions, tables, plans, nodes ---------------------------------------------------------------------------


@given(TOPICS, NUMBERS)
def test_topic_partition_survives_a_round_trip(topic: str, partition: int) -> None:
    tp = TopicPartition(topic, partition)
    assert TopicPartition.parse(str(tp)) == tp


@pytest.mark.parametrize("text", ["", "a", "a/", "/0", "a/b/0", "a/-1", "a/01", "a/٣", "../0", "a/1 "])
def test_topic_partition_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form topic/partition"):
        TopicPartition.parse(text)


def test_table_names_contain_the_generation() -> None:
    assert names.quarantine_table_name("a.flights") == "a.flights_quarantine"
    assert names.unique_table_name("a.flights") == "a.flights_unique"
    assert names.duplicates_table_name("a.flights") == "a.flights_duplicates"
    assert names.name_with_generation("a.flights", 2) == "a.flights_g2"


@given(st.dictionaries(st.builds(TopicPartition, TOPICS, NUMBERS), OFFSETS, max_size=5), st.randoms())
def test_plan_key_does_not_depend_on_the_order_of_the_progress(
    progress: dict[TopicPartition, int], random: object
) -> None:
    items = list(progress.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert names.plan_key("p", "s", 1, "uuid", dict(items)) == names.plan_key("p", "s", 1, "uuid", progress)


def test_plan_key_differs_by_progress_generation_and_table() -> None:
    tp = TopicPartition("t", 0)
    plans = {names.plan_key("p", "s", g, u, {tp: o}) for g in (1, 2) for u in ("u", "v") for o in (0, 1)}
    assert len(plans) == 8
    assert all(plan.startswith("p/plans/s/") and plan.endswith(".json") for plan in plans)


def test_paths_of_zookeeper_nodes() -> None:
    paths = ZkPaths("waybill/prod", "flights", 2)
    tp = TopicPartition("f.x", 3)
    assert paths.committed_offset(tp) == "/waybill/prod/streams/flights/2/offsets/f.x/3"
    assert paths.lock(tp) == "/waybill/prod/streams/flights/2/locks/f.x/3"
    assert paths.stop(tp) == "/waybill/prod/streams/flights/2/stops/f.x/3"


@pytest.mark.parametrize("stream", ["", "Flights", "1a", "a-b", "a/b", "..", "a" * 101])
def test_names_refuse_a_stream_that_cannot_be_part_of_a_path(stream: str) -> None:
    with pytest.raises(ConfigError, match="is not usable: it starts with a lower-case letter"):
        _ = ZkPaths("waybill", stream, 1).base
    with pytest.raises(ConfigError, match="is not usable"):
        names.plan_key("p", stream, 1, "uuid", {})


def test_plan_key_does_not_change_between_versions_of_waybill() -> None:
    """A plan outlives the process that made it: with another key a later version would not find it."""
    progress = {TopicPartition("flights", 1): 7, TopicPartition("flights", 0): 5}
    assert json.dumps(sorted((str(tp), o) for tp, o in progress.items())) == '[["flights/0", 5], ["flights/1", 7]]'
    assert names.plan_key("", "flights", 1, "u", progress) == "plans/flights/1/u/78eadfbe929222c18aa1cf71955388b1.json"


HOUR = datetime(2026, 1, 2, 3, tzinfo=UTC)


def test_files_of_the_sink_are_in_directories_by_event_time() -> None:
    hour, day = SinkPeriod("flights", HOUR, by_hour=True), SinkPeriod("flights", HOUR.replace(hour=0), by_hour=False)
    assert names.FileName(hour, 1, 2, 345, FileExtension.PARQUET).key("p/tables/t_g1") == (
        "p/tables/t_g1/flights/dt=2026-01-02/hr=03/1_2_00000000000000000345.parquet"
    )
    assert names.FileName(day, 1, 2, 345, FileExtension.TEXT_GZIP).key("") == (
        "flights/dt=2026-01-02/1_2_00000000000000000345.txt.gz"
    )
    assert names.success_key("p", hour) == "p/flights/dt=2026-01-02/hr=03/_SUCCESS"
    assert (str(hour), str(day)) == ("flights/dt=2026-01-02/hr=03", "flights/dt=2026-01-02")
    assert (hour.end - hour.start, day.end - day.start) == (timedelta(hours=1), timedelta(days=1))
    assert names.sink_root("a/b", "tables/x.y_g1") == "a/b/tables/x.y_g1"


@given(
    topic=TOPICS,
    hours=st.integers(0, 24 * 365 * 9000),
    by_hour=st.booleans(),
    numbers=st.tuples(NUMBERS, NUMBERS, OFFSETS),
    extension=st.sampled_from(FileExtension),
    root=st.sampled_from(["", "tables", "a/b"]),
)
def test_file_name_survives_a_round_trip(
    topic: str, hours: int, by_hour: bool, numbers: tuple[int, int, int], extension: FileExtension, root: str
) -> None:
    start = datetime(1, 1, 1, tzinfo=UTC) + timedelta(hours=hours if by_hour else hours // 24 * 24)
    name = names.FileName(SinkPeriod(topic, start, by_hour), *numbers, extension)
    assert names.FileName.parse(root, name.key(root)) == name
    assert names.period_of_key(root, names.success_key(root, name.period)) == name.period
    assert name.period.start < name.period.end


@pytest.mark.parametrize(
    "key",
    [
        "r/t/dt=2026-02-30/hr=00/1_0_00000000000000000000.parquet",
        "r/t/dt=2026-01-01/hr=24/1_0_00000000000000000000.parquet",
        "r/t/dt=2026-01-01/hr=1/1_0_00000000000000000000.parquet",
        "r/../dt=2026-01-01/hr=01/1_0_00000000000000000000.parquet",
        "r/t/dt=2026-01-01/hr=01/x/1_0_00000000000000000000.parquet",
        "r/t/dt=2026-01-01/hr=01/_SUCCESS",
        "r/t/dt=2026-01-01/hr=01/01_0_00000000000000000000.parquet",
        "r/t/dt=2026-01-01/hr=01/1_0_99999999999999999999.parquet",
        "r/t/dt=2026-01-01/hr=01/1_0_00000000000000000000.orc",
        "s/t/dt=2026-01-01/hr=01/1_0_00000000000000000000.parquet",
    ],
)
def test_file_name_refuses_other_keys(key: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a file below 'r'"):
        names.FileName.parse("r", key)


def test_keys_of_sweeps_and_index_manifests_sort_by_number() -> None:
    assert names.sweep_plan_key("a", "flights", 2, "u", 12) == "a/sweeps/flights/2/u/00000000000000000012.json"
    index = names.key_index_prefix("a", "flights", 2, "u")
    assert index == "a/dedup/flights/2/u/"
    rebuilt = names.key_index_prefix("a", "flights", 2, names.history_name("u", "2_ab"))
    assert rebuilt == "a/dedup/flights/2/u-2_ab/"
    assert not rebuilt.startswith(index)
    keys = [names.key_index_manifest_key(index, version) for version in (1, 2, 10, names.MAX_OFFSET)]
    assert keys == sorted(keys)
    assert all(key.startswith(names.key_index_manifests_prefix(index)) for key in keys)
    assert [names.key_index_version_of(key) for key in keys] == [1, 2, 10, names.MAX_OFFSET]
    with pytest.raises(ValueError, match="-1 cannot be part of a name"):
        names.key_index_manifest_key(index, -1)
