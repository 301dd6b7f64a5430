#!/usr/bin/env bash
# Usage: scripts/emulated_hash.sh
#
# Prints a hash of everything that decides what the emulated tests of CUDA kernels find: kernels, the core but for its
# communicators, dependencies, the toolchain, the emulator but for its NCCL, and the tests themselves.
# kernels/emulated.txt holds the hash for which all of these tests passed; scripts/test.sh leaves them out while it is
# the same.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"
cd "$root"
core=crates/bmtrain-core
# In one order everywhere; a hash of names and contents, so that a renamed file counts.
find kernels "$core/src" crates/cuda-emulator Cargo.lock rust-toolchain.toml \
    "$core"/tests/cuda/cuda_{conformance,edges,bits,vocabulary,large,probe,emulated,sanitized,warpgroups}.rs \
    -type f -not -path "$core/src/comm/*" -not -path "$core/src/limits/*" \
    -not -name emulated.txt -not -name ledger.txt -not -name steps.txt -not -name "fake_nccl*" -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
