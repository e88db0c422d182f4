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

# uv installs the lock in a fifth of pip's time; pip is the way back where only pip knows the package index.
uv_version="$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements-dev.txt)"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$uv_version"
index="$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)"
if [ -n "${PIP_INDEX_URL:-$index}" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$index}}"; fi
if ! "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps -r requirements-dev.txt; then
    echo "waybill: uv could not install the lock; trying pip (two to three minutes)"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-dev.txt
fi
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . \
    || "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -e .
