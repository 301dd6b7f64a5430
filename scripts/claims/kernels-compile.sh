#!/usr/bin/env bash
# Usage: scripts/claims/kernels-compile.sh [--accept | --all]
#
# Every unit of CUDA kernels compiled by NVRTC for A100 (sm_80) and Hopper (sm_90, sm_90a) and by nvcc for sm_90a, with
# --all for each of the three. What each kernel takes of a multiprocessor, as NVRTC has it, is held against
# kernels/registers.csv: no spilled register without a reason given there, no more registers, stack or shared memory
# than before, no kernel more or less. The figure is kernels x architectures / those that spill with a reason.
#
# --accept writes what was measured into that file, with the reasons already there; look at the difference before you
# commit it.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'' | --accept | --all) ;;
*) fail "kernels-compile $1" "there is no such option" "see scripts/claims/kernels-compile.sh --help" ;;
esac
need python3 "install Python 3.9 or newer"
need g++ "install a C++ compiler, which nvcc needs, on Debian: apt-get install g++"
need_cargo
toolkit="$("$root/scripts/cuda_env.sh")"
scratch
(cd "$root" && cargo run --locked --quiet --package bmtrain-kernels --example texts "$scratch") >&2
figure="$(python3 "$root/scripts/claims/kernels_compile.py" "$toolkit" "$scratch" "$root/kernels/registers.csv" \
    "$cache/cuda/compiled" "$@")" || verdict "${figure:-none}" short
verdict "$figure" ok
