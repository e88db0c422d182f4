"""The CPU time of each parser, decoder and codec for its worst message of 1, 2, 4 and 8 MB.

    python bench/growth.py [--case SUBJECT] [--all] [--json FILE]

All kinds of messages in `tests/fuzz/fuzzers/worst.py` are tried at 256 kB. Of each subject, the slowest kind is
measured at all sizes; with `--all`, every kind is. A message that a limit refuses is quick: then the figure is that of
the refusal. Schemas of Avro are left out: they are no messages, and have limits of their own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT / "tests" / "fuzz"), str(_ROOT / "tests" / "unit" / "web")]

from fuzzers.worst import CASES, Worst, seconds  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

MEGABYTES = (1, 2, 4, 8)
_FIRST_BYTES = 1 << 18


def main() -> None:
    """Measure, print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="", help="only the subjects that begin so")
    parser.add_argument("--all", action="store_true", help="every kind of message, not only the worst")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    chosen = [each for each in CASES.values() if each.subject.startswith(given.case) and each.subject != "avro schema"]
    if not given.all:
        chosen = worst_of_each(chosen)
    figures = {each.name: [measure(each, megabytes << 20) for megabytes in MEGABYTES] for each in chosen}
    table = Table("subject: worst message", *(f"{megabytes} MB" for megabytes in MEGABYTES), "growth")
    for name, found in figures.items():
        growth = (found[-1] / max(found[0], 1e-6)) ** (1 / 3)
        table.add_row(name, *(f"{each:.3f} s" for each in found), f"{growth:.2f}")
    Console(width=120).print(table)
    print("growth: how many times the work is for twice the message, on average from 1 to 8 MB")
    if given.json is not None:
        given.json.write_text(json.dumps({"megabytes": MEGABYTES, "cpu_seconds": figures}, indent=2))


def worst_of_each(cases: list[Worst]) -> list[Worst]:
    """Return for each subject the case that takes longest."""
    slowest: dict[str, tuple[float, Worst]] = {}
    for each in cases:
        taken = measure(each, _FIRST_BYTES)
        if each.subject not in slowest or taken > slowest[each.subject][0]:
            slowest[each.subject] = taken, each
    return [each for _, each in slowest.values()]


def measure(worst: Worst, size: int) -> float:
    """Return the CPU seconds for a message of a size."""
    step = worst.prepare(size)
    step()
    return seconds(step)


if __name__ == "__main__":
    main()
