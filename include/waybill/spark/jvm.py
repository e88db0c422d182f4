"""What the JVM of a job is told whose messages never pass through it.

The partition job's JVM starts, hands out tasks and ends: much of its CPU goes into compiling code for a speed that
nothing then needs, and into threads that collect garbage side by side. Measured in docs/decisions/0011.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BRIEF_JVM_OPTIONS", "with_brief_jvm"]

BRIEF_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compile quickly, and collect garbage in one thread."""

_VARIABLE = "JDK_JAVA_OPTIONS"


def with_brief_jvm(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for `spark-submit`, in which its JVMs have `BRIEF_JVM_OPTIONS`.

    By `JDK_JAVA_OPTIONS`, which Java reads before its command line: options that the Spark connection or
    spark-defaults.conf name stay, and win. Executors of a cluster have environments of their own, and are not touched.
    """
    found = environment.get(_VARIABLE, "")
    if BRIEF_JVM_OPTIONS in found:
        return dict(environment)
    return {**environment, _VARIABLE: f"{BRIEF_JVM_OPTIONS} {found}".rstrip()}
