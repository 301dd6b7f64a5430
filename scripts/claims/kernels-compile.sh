#!/usr/bin/env bash
# Usage: scripts/claims/kernels-compile.sh [--accept | --all | --unchanged]
#
# Every unit of CUDA kernels compiled by NVRTC for A100 (sm_80), RTX 40 and L40 (sm_89), Hopper (sm_90a) and Blackwell
# (sm_100), and by nvcc for sm_90a to PTX, with --all for each of the four and to machine code. What becomes of each
# kernel is held against kernels/ledger.txt: registers, shared memory, the blocks that a multiprocessor holds, products
# on tensor cores, accesses to memory by their width, barriers. Every value that differs is a finding, local memory
# takes a reason in the ledger, and instructions that all lanes of a warp take part in may not be predicated. The figure
# is kernels x architectures / those that spill with a reason.
#
# --accept writes the ledger, with the reasons already there, and kernels/compiled.txt, the hash of what was compiled:
# kernels, ledger, versions of the compilers, and the scripts. Look at the difference before you commit them.
# --unchanged only tells, by its exit status, whether the hash is still the same; scripts/test.sh then leaves this out.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'' | --accept | --all | --unchanged) ;;
*) fail "kernels-compile $1" "there is no such option" "see scripts/claims/kernels-compile.sh --help" ;;
esac
cd "$root"
compiled_hash() {
    find kernels scripts/cuda_env.sh scripts/claims/kernel{s-compile.sh,s_compile.py,_ledger.py} -type f \
        -not -name README.md -not -name steps.txt -not -name emulated.txt -not -name compiled.txt -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
}
if [ "${1:-}" = --unchanged ]; then
    grep -q "^sha256 $(compiled_hash)$" kernels/compiled.txt
    exit
fi
need python3 "install Python 3.9 or newer"
need g++ "install a C++ compiler, which nvcc needs, on Debian: apt-get install g++"
need_cargo
toolkit="$("$root/scripts/cuda_env.sh")"
scratch
cargo run --locked --quiet --package bmtrain-kernels --example texts "$scratch" >&2
figure="$(python3 scripts/claims/kernels_compile.py "$toolkit" "$scratch" kernels/ledger.txt \
    "$cache/cuda/compiled" "$@")" || verdict "${figure:-none}" short
if [ "${1:-}" = --accept ]; then
    {
        echo "# Written by scripts/claims/kernels-compile.sh --accept after all kernels had compiled."
        # Of the ledger as it is now.
        echo "sha256 $(compiled_hash)"
        echo "$figure"
    } >kernels/compiled.txt
fi
verdict "$figure" ok
