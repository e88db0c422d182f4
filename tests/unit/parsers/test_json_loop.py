"""The compiled loop of the parser `json` reads nothing outside of its arrays, whatever the messages are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import json_drill
import pytest


@pytest.mark.deep
def test_the_loop_stays_within_its_arrays(request: pytest.FixtureRequest) -> None:
    """Run the drill in a process where numba checks every index: an access out of bounds raises IndexError."""
    # A cache of its own, since cached code of normal processes lacks the checks. It is kept between test runs,
    # because compiling takes some seconds.
    cache = request.config.cache
    assert cache is not None
    environment = os.environ | {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(cache.mkdir("numba-boundscheck")),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, json_drill.__file__], env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > 10_000
