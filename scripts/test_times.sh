#!/usr/bin/env bash
# Usage: scripts/test_times.sh LOG
#
# Prints the seconds and name of every test in a log of `cargo test` whose lines start with the time at which each came.
# The test harness prints no times: it runs tests in the order of their names, as many at once as there are cores
# (RUST_TEST_THREADS), so that a test starts when the one before it has, and another has ended.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'') fail "test_times.sh" "there is no log" "see scripts/test_times.sh --help" ;;
esac
# PROGRAM, TIME, NAME of each end, and of each start of a program with no name.
ends="$(mktemp)"
trap 'rm -f "$ends"' EXIT
awk '{ line = substr($0, index($0, " ") + 1) }
    line ~ /^running [0-9]+ tests?$/ { printf "%d\t%s\t\n", ++program, $1 }
    program && line ~ /^test .* \.\.\. / {
        sub(/^test /, "", line); sub(/ \.\.\. .*/, "", line); sub(/ - should panic$/, "", line)
        printf "%d\t%s\t%s\n", program, $1, line
    }' "$1" >"$ends"
LC_ALL=C sort -t "$(printf '\t')" -k 1,1n -k 3,3 "$ends" |
    awk -F '\t' -v threads="${RUST_TEST_THREADS:-$(nproc)}" '
        FNR == NR { if ($3 != "") order[$1, ++count[$1]] = $3; next }
        $3 == "" { for (next_[$1] = 1; next_[$1] <= threads; next_[$1]++) start[$1, order[$1, next_[$1]]] = $2; next }
        {
            printf "%8.1f s  %s\n", $2 - start[$1, $3], $3
            start[$1, order[$1, next_[$1]++]] = $2
        }' - "$ends"
