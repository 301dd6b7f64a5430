#!/usr/bin/env bash
# The CPU backend's tests built for AArch64 and run there: on such a machine as they are, elsewhere under qemu. Needs a
# compiler with the target's standard library, a linker for it, and its C library.
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
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /"
    # Of its own, since another compiler would build everything anew.
    arguments=(--target "$triple" --target-dir "$target/aarch64")
fi
tests "${arguments[@]}" --package bmtrain-core --features testing --lib -- cpu:: "${skip[@]}"
outcome=short
# The tests of a whole backend, not of a filter that matches a few.
if [ "$failed" -eq 0 ] && [ "$passed" -ge 40 ]; then outcome=ok; fi
verdict "$figure,$where" "$outcome"
