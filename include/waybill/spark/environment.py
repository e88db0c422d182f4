"""The environment of `spark-submit` for the jobs whose messages never pass through the JVM.

By variables, not by settings of Spark: options that the Spark connection or spark-defaults.conf name stay, and win.
Executors of a cluster have environments of their own, and are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BRIEF_JVM_OPTIONS", "with_brief_jvm", "with_kept_memory"]

BRIEF_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compile quickly, and collect garbage in one thread."""

_JVM = "JDK_JAVA_OPTIONS"
_PURGE_DELAY = "MIMALLOC_PURGE_DELAY"
_NEVER = "-1"


def with_brief_jvm(environment: Mapping[str, str]) -> dict[str, str]:
    """That environment, in which JVMs have `BRIEF_JVM_OPTIONS`, by a variable that Java reads before its command line.

    Such a job's JVM starts, hands out tasks and ends: much of its CPU goes into compiling code for a speed that nothing
    then needs, and into threads that collect garbage side by side. Measured in docs/decisions/0011.
    """
    found = environment.get(_JVM, "")
    if BRIEF_JVM_OPTIONS in found:
        return dict(environment)
    return {**environment, _JVM: f"{BRIEF_JVM_OPTIONS} {found}".rstrip()}


def with_kept_memory(environment: Mapping[str, str]) -> dict[str, str]:
    """That environment, in which Arrow's allocator keeps memory for the next batch, unless it says otherwise.

    Given back to the kernel, as it is else after each batch, it has to be filled with zeros again. A dedup sweep's
    tasks take a tenth less CPU without that, and hold an eighth more memory; a partition job's take as much
    (docs/decisions/0015). To be set before Arrow is loaded.
    """
    return {_PURGE_DELAY: _NEVER, **environment}
