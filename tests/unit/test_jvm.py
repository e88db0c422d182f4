from __future__ import annotations

from waybill.spark.jvm import BRIEF_JVM_OPTIONS, with_brief_jvm


def test_options_of_the_environment_come_after_ours_and_so_win() -> None:
    assert with_brief_jvm({"A": "b"}) == {"A": "b", "JDK_JAVA_OPTIONS": BRIEF_JVM_OPTIONS}
    found = with_brief_jvm({"JDK_JAVA_OPTIONS": "-Xmx2g"})
    assert found == {"JDK_JAVA_OPTIONS": f"{BRIEF_JVM_OPTIONS} -Xmx2g"}
    assert with_brief_jvm(found) == found
