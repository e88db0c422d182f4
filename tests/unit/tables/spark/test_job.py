"""The environment in which spark-submit runs Waybill's jobs."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from waybill.tables.spark.job import BRIEF_JVM_OPTIONS, with_brief_jvm, with_kept_memory


def test_jvm_options_of_the_environment_come_last_and_so_win() -> None:
    assert with_brief_jvm({"A": "b"}) == {"A": "b", "JDK_JAVA_OPTIONS": BRIEF_JVM_OPTIONS}
    changed = with_brief_jvm({"JDK_JAVA_OPTIONS": "-Xmx2g"})
    assert changed == {"JDK_JAVA_OPTIONS": f"{BRIEF_JVM_OPTIONS} -Xmx2g"}
    assert with_brief_jvm(changed) == changed


def test_arrow_keeps_memory_unless_the_environment_sets_a_delay() -> None:
    kept = {"MIMALLOC_PURGE_DELAY": "-1", "MIMALLOC_ALLOW_LARGE_OS_PAGES": "1"}
    assert with_kept_memory({"A": "b"}) == {"A": "b", **kept}
    assert with_kept_memory({"MIMALLOC_PURGE_DELAY": "5"}) == {**kept, "MIMALLOC_PURGE_DELAY": "5"}


def test_arrows_allocator_reads_the_variables() -> None:
    script = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    shown = os.environ | {"MIMALLOC_VERBOSE": "1"} | with_kept_memory({})
    found = subprocess.run([sys.executable, "-c", script], env=shown, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "mimalloc"
    assert "option 'purge_delay': -1" in found.stderr
    assert "option 'allow_large_os_pages': 1" in found.stderr


_DRIVER = """
import os, sys, time
from waybill.tables.spark.job import end_with_spark_submit
end_with_spark_submit()
print(os.getpid(), flush=True)
time.sleep(100)
"""
_SUBMIT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_a_driver_ends_with_the_spark_submit_that_runs_it() -> None:
    environment = os.environ | {"PYSPARK_GATEWAY_PORT": "1"}
    command = [sys.executable, "-c", _SUBMIT, _DRIVER]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as submit:
        assert submit.stdout is not None
        driver = psutil.Process(int(submit.stdout.readline()))
        submit.kill()
        driver.wait(10)
