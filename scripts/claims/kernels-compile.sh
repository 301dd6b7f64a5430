#!/usr/bin/env bash
# Usage: scripts/claims/kernels-compile.sh [--accept | --all]
#
# Every unit of CUDA kernels compiled by NVRTC for A100 (sm_80), RTX 40 and L40 (sm_89), Hopper (sm_90a) and Blackwell
# (sm_100), and by nvcc for sm_90a to PTX, with --all for each of the four and to machine code. What becomes of each
# kernel is held against kernels/ledger.txt: registers, shared memory, the blocks that a multiprocessor holds, products
# on tensor cores, accesses to memory by their width, barriers. Every value that differs is a finding, local memory
# takes a reason in the ledger, and instructions that all lanes of a warp take part in may not be predicated. The figure
# is kernels x architectures / those that spill with a reason.
#
# --accept writes the ledger, with the reasons already there; look at the difference before you commit it.
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
figure="$(python3 "$root/scripts/claims/kernels_compile.py" "$toolkit" "$scratch" "$root/kernels/ledger.txt" \
    "$cache/cuda/compiled" "$@")" || verdict "${figure:-none}" short
verdict "$figure" ok
