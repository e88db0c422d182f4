"""`make test` in a process that ignores SIGINT (`nohup`, a background job of a script) hands that on to no test."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# `run_all` is replaced by one child process, as the pytest processes are, which prints what it does at SIGINT.
_RUN = """
import runpy, subprocess, sys
module = runpy.run_path("tests/run.py", run_name="run")
def child(kind, directory):
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    return subprocess.run([sys.executable, "-c", code]).returncode
module["main"].__globals__["run_all"] = child
sys.argv = ["tests/run.py"]
sys.exit(module["main"]())
"""

# pytest alone: `make test PYTEST_ARGS=…`
_TEST = """
import signal, subprocess, sys

def test_interrupt():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == -signal.SIGINT
"""


def _ignoring(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that ignores SIGINT, as one of a background job."""
    start = (
        f"import os, signal, sys; signal.signal({signal.SIGINT:d}, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    return subprocess.run(
        [sys.executable, "-c", start, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_command_that_sets_no_handler_inherits_that_it_is_ignored() -> None:
    """So the tests below would fail without the change."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert _ignoring([sys.executable, "-c", code]).stdout.strip() == "True"


def test_the_processes_of_make_test_have_the_default_disposition() -> None:
    done = _ignoring([sys.executable, "-c", _RUN])
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


def test_pytest_itself_and_what_a_test_starts_have_it_too(tmp_path: Path) -> None:
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest)
    path = tmp_path / "test_interrupt.py"
    path.write_text(_TEST)
    done = _ignoring(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(path)]
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_as_ctrl_c_does(number: signal.Signals) -> None:
    """With code 130, after what it had started was stopped."""
    code = _RUN.replace("    code =", f"    import os; os.kill(os.getpid(), {number:d})\n    code =")
    assert _ignoring([sys.executable, "-c", code]).returncode == 130
