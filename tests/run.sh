#!/usr/bin/env bash
# Runs the tests that need no servers beside the tests that do, and prints the results of both, one after the other.
#
#   tests/run.sh PYTHON           `make test`: all tests but the deep ones
#   tests/run.sh PYTHON deep      `make test-deep`: kill matrices, many seeds, clusters, elections; property tests with
#                                 many more examples
#
# Tests with servers wait a lot (sessions, elections, Airflow's scheduler), so the other half runs in the time that they
# leave, at a lower priority. Each half is one pytest process, so there is still one stack and one Spark session.
set -uo pipefail
python="$1"
select=(-m "not deep")
if [ "${2:-}" = deep ]; then
    export WAYBILL_DEEP=1
    select=(-m "deep or hypothesis")
fi
log="$(mktemp -t waybill-unit-tests.XXXXXX)"
nice -n 5 "$python" -m pytest "${select[@]}" tests/unit tests/model >"$log" 2>&1 &
unit=$!
trap 'kill -INT "$unit" 2>/dev/null; wait "$unit" 2>/dev/null; rm -f "$log"' EXIT
trap 'exit 130' INT TERM

"$python" -m pytest "${select[@]}" tests/integration tests/faults tests/e2e
servers_code=$?
wait "$unit"
unit_code=$?
echo
echo "Tests that need no servers (tests/unit, tests/model), which ran at the same time:"
cat "$log"
# Code 5: no test was selected.
[ "$unit_code" -eq 5 ] && unit_code=0
[ "$servers_code" -eq 5 ] && servers_code=0
exit $((servers_code ? servers_code : unit_code))
