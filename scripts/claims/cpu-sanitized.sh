#!/usr/bin/env bash
# The CPU backend's tests under AddressSanitizer: packing, products in tiles by the software models and by what the
# processor has, attention, kernels of few rows. What inline assembly reads is not checked; the models read the same.
# The figure is tests passed/all. On a target without the sanitizer: exit status 75.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

triple="$(rustc -vV | sed -n 's/^host: //p')"
runtime=("$(rustc --print target-libdir)"/librustc-*_rt.asan.*)
if [ ! -e "${runtime[0]}" ]; then
    note "$triple has no AddressSanitizer"
    verdict no_sanitizer noisy
fi
# Sanitizers are an unstable option, which the pinned compiler takes with this variable.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=detect_leaks=0
# A rate that instrumented code does not reach.
skip=(--skip the_peak_is_a_plausible_rate)
# Of its own, since other flags would build everything anew. With a target named, build scripts are left as they are.
tests --target "$triple" --target-dir "$target/sanitized" --package bmtrain-core --features testing --lib -- \
    cpu:: "${skip[@]}"
outcome=short
# The tests of a whole backend, not of a filter that matches a few.
if [ "$failed" -eq 0 ] && [ "$passed" -ge 40 ]; then outcome=ok; fi
verdict "$figure" "$outcome"
