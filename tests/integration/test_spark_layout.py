"""Executors that have another Waybill than the driver: the error says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration]

DRIVER = """
from pyspark import SparkContext
from waybill.base.errors import ConfigError
from waybill.tables.spark.execute import run_each

def start():
    return SparkContext("local[1]", "layout", conf=__import__("pyspark").SparkConf().setAll({SETTINGS}.items()))

try:
    print("result", run_each(start, lambda task: task + 1, [1, 2]))
except ConfigError as error:
    print(error)
"""
OF_DAEMON = {"spark.python.daemon.module": "waybill.tables.spark.daemon"}


@pytest.mark.parametrize("settings", [{}, OF_DAEMON], ids=["Spark's daemon", "Waybill's daemon"])
@pytest.mark.parametrize("layout", ["spark/execute.py", "tables/iceberg.py"])
def test_executors_with_an_earlier_layout_are_refused_by_name(
    tmp_path: Path, layout: str, settings: dict[str, str]
) -> None:
    earlier = tmp_path / "earlier"
    module = earlier / "waybill" / layout
    module.parent.mkdir(parents=True)
    for folder in (earlier / "waybill", module.parent):
        (folder / "__init__.py").touch()
    module.touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{earlier}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER.replace("{SETTINGS}", repr({"spark.ui.enabled": "false"} | settings))],
        env=os.environ | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "the executors have another Waybill than the driver: 'waybill.tables" in ran.stdout, ran.stderr[-3000:]
    assert "make spark-env" in ran.stdout
