"""Every target for some seconds, with the same inputs each time; in `make test-deep` with 100,000 inputs and more."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from fuzzers.engine import Target, TooMuchWork, failure, run
from fuzzers.mutation import Mutator
from fuzzers.shrink import smallest
from fuzzers.targets import TARGETS

SEED = 13


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_of_the_smoke_run_is_treated_wrongly(name: str) -> None:
    outcome = run(TARGETS[name], seed=SEED, inputs=TARGETS[name].smoke)
    assert outcome.finding is None, f"\n{outcome.finding}"


@pytest.mark.deep
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_of_the_long_run_is_treated_wrongly(name: str) -> None:
    outcome = run(TARGETS[name], seed=SEED + 1, inputs=TARGETS[name].deep)
    assert outcome.tried >= TARGETS[name].deep or outcome.finding is not None
    assert outcome.finding is None, f"\n{outcome.finding}"


def test_a_target_has_fewer_deep_inputs_only_with_a_reason() -> None:
    for target in TARGETS.values():
        assert target.check.__doc__, target.name
        assert target.deep >= 100_000 or f"{target.deep:,} inputs in `make test-deep`" in target.check.__doc__


# --- the engine -------------------------------------------------------------------------------------------------------


def _check(inputs: Sequence[bytes]) -> None:
    """Fail for an input that holds both letters."""
    for each in inputs:
        assert not (b"x" in each and b"y" in each), each


BROKEN = Target("broken", Mutator([b"a" * 50], [b"x", b"y"]), _check, batch=100)


def test_a_finding_has_the_smallest_input_and_the_commands_that_repeat_it() -> None:
    finding = run(BROKEN, seed=1, inputs=10_000).finding
    assert finding is not None
    [smallest_input] = finding.inputs
    assert sorted(smallest_input) == list(b"xy")
    assert isinstance(failure(BROKEN, [smallest_input]), AssertionError)
    assert f"make fuzz TARGET=broken INPUT={smallest_input.hex()}" in str(finding)
    assert f"make fuzz TARGET=broken SEED=1 BATCH={finding.batch}" in str(finding)
    assert isinstance(failure(BROKEN, BROKEN.inputs(1, finding.batch)), AssertionError)


def test_the_same_seed_gives_the_same_inputs_in_every_batch() -> None:
    assert BROKEN.inputs(1, 5) == BROKEN.inputs(1, 5)
    assert len({repr(BROKEN.inputs(seed, batch)) for seed in (1, 2) for batch in (5, 6)}) == 4


def test_a_failure_that_needs_several_inputs_keeps_these() -> None:
    inputs = [b"%d" % number for number in range(200)]
    found = smallest(inputs, lambda some: {b"17", b"150"} <= set(some))
    assert sorted(found) == [b"150", b"17"]


def test_a_batch_that_takes_too_much_memory_is_a_finding() -> None:
    def check(_: Sequence[bytes]) -> None:
        bytearray(3 << 29)[::4096] = b"x" * ((3 << 29) // 4096)

    assert isinstance(failure(Target("large", random.Random().randbytes, check), [b""]), TooMuchWork)  # type: ignore[arg-type]
