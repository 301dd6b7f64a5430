#!/usr/bin/env bash
# Usage: scripts/claims/kernels-emulated.sh [--accept]
#
# Every CUDA kernel and all that launches it, on an emulated device: every row of the conformance table in every dtype
# against the CPU, edges, bits, vocabularies in parts, sizes beyond 32 bits, the device itself, communication between
# ranks, and every row that launches a kernel once more under the sanitizers. None of it runs on a device, and
# none of it measures speed. The figure is tests passed/all and what they took.
#
# --accept leaves communication between ranks out, which the hash does not cover, and writes kernels/emulated.txt if all
# others pass: for what has this hash, scripts/test.sh leaves these tests out.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'' | --accept) ;;
*) fail "kernels-emulated $1" "there is no such option" "see scripts/claims/kernels-emulated.sh --help" ;;
esac
need g++ "install a C++ compiler, which the emulator needs, on Debian: apt-get install g++"
export BMTRAIN_SANITIZE_ALL=1
unset BMTRAIN_ROWS BMTRAIN_EMULATED_KERNELS_UNCHANGED
# accept FIGURE: called where all tests passed.
# shellcheck disable=SC2317
accept() {
    {
        echo "# Written by scripts/claims/kernels-emulated.sh --accept after all tests of emulated kernels had passed."
        echo "sha256 $hash"
        echo "$1"
    } >"$root/kernels/emulated.txt"
}
hash="$("$root/scripts/emulated_hash.sh")"
communication=nccl::
if [ "${1:-}" = --accept ]; then
    communication=
    when_ok=accept
fi
emulated_verdict --package bmtrain-core --test cuda -- cuda_conformance:: cuda_edges:: cuda_bits:: cuda_vocabulary:: \
    cuda_large:: cuda_probe:: cuda_emulated:: cuda_sanitized:: cuda_warpgroups:: ${communication:+"$communication"}
