#!/usr/bin/env bash
# Makes the virtual environment from the lock. Called by the Makefile, which knows when it is out of date.
set -euo pipefail

fail() { echo "waybill: $*" >&2; exit 1; }

command -v "$PYTHON" >/dev/null || fail "no '$PYTHON' on PATH. Waybill needs Python 3.11; name yours with: make PYTHON=/path/to/python3.11 …"
version="$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" || fail "'$PYTHON' does not start. Name a working Python 3.11 with: make PYTHON=/path/to/python3.11 …"
[ "$version" = 3.11 ] || fail "'$PYTHON' is Python $version. Waybill needs 3.11; name it with: make PYTHON=/path/to/python3.11 …"

free_mb="$(df -Pm . | awk 'NR == 2 {print $4}')"
[ "$free_mb" -ge 4096 ] || fail "only ${free_mb} MB free here, and the environment needs 4,096 MB. Free some, or clone onto another disk."

echo "waybill: making the virtual environment in $VENV (about 1.7 GB; half a minute to three, once)"
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" || fail "'$PYTHON -m venv' failed. On Debian: apt-get install python3.11-venv"

# What builds and installs comes first, so that nothing is built with a package whose hash is not in the lock.
tools="$(mktemp)"
trap 'rm -f "$tools"' EXIT
awk '/^(uv|setuptools)==/ {on = 1} on {print} on && !/\\$/ {on = 0}' requirements-dev.txt > "$tools"
[ "$(grep -c == "$tools")" = 2 ] || fail "requirements-dev.txt does not lock both uv and setuptools. Make it with: make lock"

# uv installs the lock in a fifth of pip's time; pip is the way back where only pip knows the package index.
pip_install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$@"; }
pip_install --require-hashes -r "$tools"
index="$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)"
if [ -n "${PIP_INDEX_URL:-$index}" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$index}}"; fi
if ! "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps --require-hashes --no-build-isolation -r requirements-dev.txt; then
    echo "waybill: uv could not install the lock; trying pip (two to three minutes)"
    pip_install --require-hashes --no-build-isolation -r requirements-dev.txt
fi
pip_install --no-build-isolation -e .
