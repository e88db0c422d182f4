"""`make chaos-kafka SEEDS=50 FIRST_SEED=1`: brokers killed, frozen and restarted, and what the watch reports.

Exit code 1 if a state was not detected, or not reported exactly once at its beginning and once at its end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
import uuid
from pathlib import Path

from devstack import Stack
from kafka_chaos.scenario import Hurt, draw
from kafka_chaos.scene import Played, play


def main() -> None:
    """Parse the command line, play the seeds, print the table."""
    parser = argparse.ArgumentParser(prog="chaos-kafka", description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the table's figures to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    state, run, played = Path(tempfile.mkdtemp(prefix="waybill-chaos-")), uuid.uuid4().hex[:6], list[Played]()
    try:
        stack = Stack.start(state / "stack", on_progress=lambda line: print(f"stack: {line}", flush=True))
        try:
            with _environment(stack):
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    played.append(play(stack, draw(seed), state, run))
                    _say(played[-1])
        finally:
            stack.stop(grace_seconds=0.0)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    print("\n" + "\n".join(_table(played)), flush=True)
    if options.json:
        options.json.write_text(json.dumps(_figures(played), indent=2))
    sys.exit(1 if any(each.faults for each in played) else 0)


def _environment(stack: Stack):  # type: ignore[no-untyped-def]
    from unittest.mock import patch

    return patch.dict("os.environ", stack.environment())


def _say(played: Played) -> None:
    state = "FAULTS" if played.faults else "ok"
    longest, place = played.longest_watch
    print(
        f"seed {played.seed}: {state}, {played.incidents} incidents, {played.short_states} short states, "
        f"{played.seconds:.0f} s; longest watch {longest:.1f} s at {place}",
        flush=True,
    )
    for fault in played.faults:
        print(f"seed {played.seed}: {fault}", flush=True)


def _figures(played: list[Played]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for hurt in [*map(str, Hurt), "two at once"]:
        for promise in sorted({promise for each in played for _, promise in (*each.detected, *each.resolved)}):
            detected = [seconds for each in played for seconds in each.detected.get((hurt, promise), ())]
            resolved = [seconds for each in played for seconds in each.resolved.get((hurt, promise), ())]
            if detected or resolved:
                rows.append(
                    {
                        "hurt": hurt,
                        "promise": promise,
                        "times": len(detected or resolved),
                        "detected_s": [round(each, 1) for each in detected],
                        "resolved_s": [round(each, 1) for each in resolved],
                        "detected_median_s": round(statistics.median(detected), 1) if detected else None,
                        "detected_max_s": round(max(detected), 1) if detected else None,
                        "resolved_median_s": round(statistics.median(resolved), 1) if resolved else None,
                        "resolved_max_s": round(max(resolved), 1) if resolved else None,
                    }
                )
    return rows


def _table(played: list[Played]) -> list[str]:
    lines = ["| broker | promise | times | detected: median, max | resolved: median, max |", "|---|---|--:|--:|--:|"]
    lines += [
        f"| {row['hurt']} | {row['promise']} | {row['times']} | {_times(row, 'detected')} | {_times(row, 'resolved')} |"
        for row in _figures(played)
    ]
    faults = sum(len(each.faults) for each in played)
    incidents, short = sum(each.incidents for each in played), sum(each.short_states for each in played)
    lines.append(f"{len(played)} seeds, {incidents} incidents, {short} short states without an alert, {faults} faults")
    return lines


def _times(row: dict[str, object], kind: str) -> str:
    median, longest = row[f"{kind}_median_s"], row[f"{kind}_max_s"]
    return "" if median is None else f"{median} s, {longest} s"


if __name__ == "__main__":
    main()
