#!/usr/bin/env bash
# Usage: scripts/package_check.sh
#
# Packages every library crate as for publication, unpacks the packages, and builds and runs one tiny program outside
# the workspace for each, from the packaged files alone: what a crate gets that depends on that single one. The
# program of a library is scripts/package_uses/LIBRARY.rs.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"
need_cargo
cd "$root"

# cargo_either_way ARGS...: from what is on this machine, else with the registry.
cargo_either_way() {
    local log="$work/cargo.log"
    cargo "$@" --offline --quiet >"$log" 2>&1 || cargo "$@" --quiet
}

work="$target/package-check"
rm -rf "$work"
mkdir -p "$work"
rm -f "$target"/package/*.crate
# The libraries depend on each other by version and are not in the registry: packaged together they resolve to each
# other. The build from packaged files comes below, so cargo's own is left out.
cargo_either_way package --workspace --exclude bmtrain-examples --exclude cuda-emulator --no-verify --allow-dirty \
    --locked

patches=""
profiles=""
libraries=()
for package in "$target"/package/*.crate; do
    tar -xzf "$package" -C "$work"
    directory="$work/$(basename "$package" .crate)"
    library="$(awk -F'"' '/^name = / { print $2; exit }' "$directory/Cargo.toml")"
    libraries+=("$library")
    patches+="$library = { path = \"$directory\" }"$'\n'
    # Outside of its workspace a crate counts as one of the dependencies, which are optimized.
    profiles+="[profile.dev.package.$library]"$'\nopt-level = 0\n'
done
[ "${#libraries[@]}" -gt 0 ] ||
    fail "package_check.sh" "cargo made no packages in $target/package" "see $work/cargo.log"

for library in "${libraries[@]}"; do
    program="$root/scripts/package_uses/$library.rs"
    [ -f "$program" ] || fail "package_check.sh" "there is no use of the library $library" "write $program"
    version="$(awk -F'"' '/^version = / { print $2; exit }' "$work/$library"-[0-9]*/Cargo.toml)"
    user="$work/use-$library"
    mkdir -p "$user/src"
    cat >"$user/Cargo.toml" <<TOML
[package]
name = "use-$library"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
$library = "=$version"

[patch.crates-io]
$patches
# What takes the least to compile, and dependencies as in the workspace, which so are compiled once for both.
[profile.dev]
opt-level = 0
debug = false
incremental = false
[profile.dev.package."*"]
opt-level = 3
debug = false
[profile.dev.package.zstd-sys]
opt-level = 0
$profiles
TOML
    cp "$program" "$user/src/main.rs"
    # The workspace's versions, so that nothing is resolved anew.
    cp "$root/Cargo.lock" "$user/Cargo.lock"
    (cd "$user" && CARGO_TARGET_DIR="$target" cargo_either_way build && "$target/debug/use-$library")
    note "package $library $version: built and used from outside"
done
