#!/usr/bin/env bash
# .ci/run, which is scripts/test.sh, in a fresh clone of HEAD: the total in seconds; its stages are on stderr. At most
# 40 minutes, with the tests of emulated kernels skipped, whose hash must equal the one in kernels/emulated.txt.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need git "install git"
need_cargo
scratch
git clone --quiet "$root" "$scratch/clone"
cd "$scratch/clone"
grep -q "^sha256 $(scripts/emulated_hash.sh)$" kernels/emulated.txt ||
    fail "claims.sh $id" "kernels/emulated.txt is of other kernels, launch code or tests" \
        "run scripts/claims/kernels-emulated.sh --accept and commit kernels/emulated.txt"
scripts/claims/kernels-compile.sh --unchanged ||
    fail "claims.sh $id" "kernels/compiled.txt is of other kernels, compilers or another ledger" \
        "run scripts/claims/kernels-compile.sh --accept and commit kernels/compiled.txt"
started=$SECONDS
status=0
env -u CARGO_TARGET_DIR .ci/run >"$scratch/log" 2>&1 || status=$?
took=$((SECONDS - started))
grep -E '^(passed|FAILED|    |[0-9]+ passed)' "$scratch/log" >&2 || true
figure="${took}s,$(tail -n 1 "$scratch/log" | tr -d ',' | tr ' ' '_')"
if [ "$status" -eq 0 ] && [ "$took" -le 2400 ]; then verdict "$figure" ok; else verdict "$figure" short; fi
