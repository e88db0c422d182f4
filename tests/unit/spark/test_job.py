"""The environment in which spark-submit runs Waybill's jobs."""

from __future__ import annotations

import os
import subprocess
import sys

from waybill.spark.job import BRIEF_JVM_OPTIONS, with_brief_jvm, with_kept_memory


def test_jvm_options_of_the_environment_come_last_and_so_win() -> None:
    assert with_brief_jvm({"A": "b"}) == {"A": "b", "JDK_JAVA_OPTIONS": BRIEF_JVM_OPTIONS}
    changed = with_brief_jvm({"JDK_JAVA_OPTIONS": "-Xmx2g"})
    assert changed == {"JDK_JAVA_OPTIONS": f"{BRIEF_JVM_OPTIONS} -Xmx2g"}
    assert with_brief_jvm(changed) == changed


def test_arrow_keeps_memory_unless_the_environment_sets_a_delay() -> None:
    assert with_kept_memory({"A": "b"}) == {"A": "b", "MIMALLOC_PURGE_DELAY": "-1"}
    assert with_kept_memory({"MIMALLOC_PURGE_DELAY": "5"}) == {"MIMALLOC_PURGE_DELAY": "5"}


def test_arrows_allocator_reads_the_variable() -> None:
    script = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    shown = os.environ | {"MIMALLOC_VERBOSE": "1"} | with_kept_memory({})
    found = subprocess.run([sys.executable, "-c", script], env=shown, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "mimalloc"
    assert "option 'purge_delay': -1" in found.stderr
