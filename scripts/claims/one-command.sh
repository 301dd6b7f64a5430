#!/usr/bin/env bash
# One small program: the stripped binary of the profile `dist` has at most 40 MB, answers --help within 50 ms, and the
# names of the former programs reach its subcommands.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_cargo
(cd "$root" && cargo build --profile dist --locked --quiet --package bmtrain-programs --bin bmtrain) >&2
program="$target/dist/bmtrain"
bytes="$(stat --format %s "$program")"
# Microseconds of the fastest of ten starts.
fastest=1000000
for _ in 1 2 3 4 5 6 7 8 9 10; do
    begun="$(date +%s%N)"
    "$program" --help >/dev/null
    took=$((($(date +%s%N) - begun) / 1000))
    [ "$took" -ge "$fastest" ] || fastest="$took"
done
tests --package bmtrain-programs --features testing --test it -- one_program::
well=ok
if [ "$bytes" -gt 40000000 ] || [ "$fastest" -gt 50000 ] || [ "$failed" -gt 0 ] || [ "$passed" -eq 0 ]; then
    well=short
fi
tenths=$((bytes / 100000))
verdict "$((tenths / 10)).$((tenths % 10))MB,$((fastest / 1000))ms,$figure" "$well"
