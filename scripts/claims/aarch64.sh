#!/usr/bin/env bash
# The CPU backend's tests built for AArch64 and run there: on such a machine as they are, elsewhere under qemu, as a
# processor with FEAT_BF16, whose products of bf16 are compared with their model on 10,000,000 values too (`bf16-model`
# does that on a machine with it). Needs a compiler with the target's standard library, a linker for it, and its C
# library.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

triple=aarch64-unknown-linux-gnu
packages="rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross libc6:arm64 qemu-user"
debian="on Debian: dpkg --add-architecture arm64, then apt-get install $packages"

# has_target RUSTC: whether a compiler comes with the target's standard library.
has_target() {
    local libraries
    libraries="$(cd / && "$1" --print target-libdir --target "$triple" 2>/dev/null)" || return 1
    compgen -G "$libraries/libstd-*.rlib" >/dev/null
}

where=native
arguments=()
# A rate that an emulated processor does not reach.
skip=()
if [ "$(uname -m)" != aarch64 ]; then
    where=qemu
    skip=(--skip the_peak_is_a_plausible_rate)
    need qemu-aarch64 "$debian"
    need aarch64-linux-gnu-gcc "$debian"
    # Threads hang under qemu 7.2 with the C library of Debian's cross compiler, so it has to be the target's own.
    [ -e /lib/ld-linux-aarch64.so.1 ] ||
        fail "$id needs the C library of $triple" "there is no /lib/ld-linux-aarch64.so.1" "$debian"
    if ! has_target rustc; then
        has_target /usr/bin/rustc ||
            fail "$id needs a compiler for $triple" "neither rustc nor /usr/bin/rustc has its standard library" \
                "rustup target add $triple, or $debian"
        export RUSTC=/usr/bin/rustc
    fi
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu max -L /"
    # Of its own, since another compiler would build everything anew.
    arguments=(--target "$triple" --target-dir "$target/aarch64")
fi
arguments+=(--package bmtrain-core --features testing --lib)
tests "${arguments[@]}" -- cpu:: simd:: "${skip[@]}"
all_passed=$passed all_failed=$failed
if [ "$where" = qemu ]; then
    # It fails on a processor that multiplies no bf16.
    tests "${arguments[@]}" -- --ignored models_and_processor_agree_on_ten_million_values
    all_passed=$((all_passed + passed)) all_failed=$((all_failed + failed))
    [ "$passed" -eq 1 ] || all_failed=$((all_failed + 1))
fi
outcome=short
# The tests of a whole backend, not of a filter that matches a few.
if [ "$all_failed" -eq 0 ] && [ "$all_passed" -ge 40 ]; then outcome=ok; fi
verdict "$all_passed/$((all_passed + all_failed)),$where" "$outcome"
