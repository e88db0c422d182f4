"""Task slots from Spark's settings."""

from __future__ import annotations

import pytest

from waybill.tables.spark import session


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, 2),
        ({"spark.master": "local[7]"}, 7),
        ({"spark.master": "local[3,5]"}, 3),
        ({"spark.master": "spark://h:7077"}, 1),
        ({"spark.master": "spark://h:7077", "spark.cores.max": "12", "spark.executor.cores": "4"}, 12),
        ({"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "4"}, 20),
        ({"spark.master": "yarn", "spark.dynamicAllocation.maxExecutors": "6"}, 6),
        ({"spark.master": "yarn", "spark.executor.instances": "0", "spark.executor.cores": "4"}, 4),
    ],
)
def test_task_slots_follow_from_the_settings(
    settings: dict[str, str], slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False, _jconf=None)
    monkeypatch.setattr(session, "_submitted", lambda: conf.setAll(list(settings.items())))
    assert session.task_slots() == slots
