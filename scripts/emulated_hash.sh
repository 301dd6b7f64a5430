#!/usr/bin/env bash
# Usage: scripts/emulated_hash.sh
#
# Prints a hash of everything that decides what the emulated tests of CUDA kernels find: kernels, the core but for its
# communicators and unit tests, dependencies, the toolchain, the emulator but for its NCCL, and the tests themselves.
# kernels/emulated.txt holds the hash for which all of these tests passed; scripts/test.sh leaves them out while it is
# the same.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"
cd "$root"
core=crates/bmtrain-core
# Names and contents without unit tests, which are modules `tests` at the end of a file or in files of their own.
contents() {
    xargs -0 awk 'FNR == 1 { print FILENAME; inside = attribute = 0 }
        /^#\[cfg\(test\)\]$/ { attribute = 1; next }
        attribute { inside = /^mod tests \{$/; attribute = 0 }
        !inside'
}
find kernels "$core/src" crates/cuda-emulator Cargo.lock rust-toolchain.toml \
    "$core"/tests/cuda/cuda_{conformance,edges,bits,vocabulary,large,probe,emulated,sanitized,warpgroups}.rs \
    -type f -not -path "$core/src/comm/*" -not -path "$core/src/limits/*" \
    -not -path "$core/src/*/tests/*" -not -path "$core/src/*/tests.rs" \
    -not -name emulated.txt -not -name compiled.txt -not -name ledger.txt -not -name steps.txt \
    -not -name "fake_nccl*" -print0 | LC_ALL=C sort -z | contents | sha256sum | cut -d ' ' -f 1
