"""Which streams a job works on."""

from __future__ import annotations

import pytest
from group_configs import config_of

from waybill.base.errors import ConfigError
from waybill.config.names import Stage
from waybill.tables.spark.selection import select_streams

CONFIG = config_of(
    a={},
    b={"partition": {"group": "large"}, "dedup": {}},
    c={"partition": {"schedule": "@daily"}, "dedup": {"group": "own"}},
    d={"dedup": {"group": "large"}, "maintenance": {"pool": "slow"}},
)


def test_only_groups_with_streams_exist_and_streams_with_a_dag_of_their_own_are_in_none() -> None:
    assert CONFIG.streams_by_group(Stage.PARTITION) == {"default": ["a", "d"], "large": ["b"]}
    assert CONFIG.streams_by_group(Stage.DEDUP) == {"default": ["b"], "large": ["d"]}
    assert CONFIG.streams_by_group(Stage.MAINTENANCE) == {"default": ["a", "b", "c"]}


def test_a_group_is_all_of_its_streams_or_those_that_are_named() -> None:
    assert select_streams(CONFIG, Stage.PARTITION, "default", []) == ["a", "d"]
    assert select_streams(CONFIG, Stage.PARTITION, "default", ["d", "d"]) == ["d"]
    assert select_streams(CONFIG, Stage.PARTITION, None, ["c", "a", "c"]) == ["c", "a"]


@pytest.mark.parametrize(
    ("group", "names", "message"),
    [
        ("default", ["a", "b"], "'b': not in the partition group 'default'; its streams: a, d"),
        ("small", [], "no stream is in the partition group 'small'; groups with streams: default, large"),
        (None, ["e"], "no stream 'e'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(group: str | None, names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        select_streams(CONFIG, Stage.PARTITION, group, names)
