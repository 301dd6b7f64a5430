#!/usr/bin/env bash
# Usage: scripts/package_check.sh [CRATE...]
#
# Packages every library crate as for publication, unpacks the packages, and builds and tests crates that depend on the
# packaged files and are in a workspace of their own:
#   use-LIBRARY  for each library, what a crate gets that depends on that single one, with its default features:
#                scripts/package_uses/LIBRARY.rs; for bmtrain-dist also its tests of launchers, since a build without
#                MPI refuses some
#   own_*        examples/tests/recipes: what docs/own-block.md, docs/add-a-model.md and docs/add-a-backend.md describe
# Tests the crates that are named, by default all of them.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

case "${1:-}" in -h | --help) usage "$0"; exit 0 ;; esac
need_cargo
cd "$root"
work="$target/package-check"
rm -rf "$work"
mkdir -p "$work"
rm -f "$target"/package/*.crate

# either_way COMMAND...: a command of cargo with what is on this machine, else with the registry.
either_way() { "$@" --offline >"$work/cargo.log" 2>&1 || "$@"; }

# The libraries depend on each other by version and are not in the registry: packaged together they resolve to each
# other. The build from packaged files comes below, so cargo's own is left out.
either_way cargo package --quiet --workspace --exclude bmtrain-examples --exclude cuda-emulator --no-verify \
    --allow-dirty --locked

crates=()
patches=""
# How the paths of libraries in the manifests of examples/tests/recipes change.
paths=()
for package in "$target"/package/*.crate; do
    tar -xzf "$package" -C "$work"
    directory="$(basename "$package" .crate)"
    library="$(awk -F'"' '/^name = / { print $2; exit }' "$work/$directory/Cargo.toml")"
    patches+="$library = { path = \"$directory\" }"$'\n'
    paths+=(-e "s|\"[./]*/crates/$library\"|\"../$directory\"|")
    test="scripts/package_uses/$library.rs"
    [ -f "$test" ] || fail "package_check.sh" "no test uses the library $library" "write $test"
    user="use-$library"
    crates+=("$user")
    mkdir -p "$work/$user/src" "$work/$user/tests"
    cat >"$work/$user/Cargo.toml" <<TOML
[package]
name = "$user"
version = "0.0.0"
edition = "2024"

[dependencies]
$library = "=${directory#"$library-"}"
TOML
    echo "//! Its tests use the library." >"$work/$user/src/lib.rs"
    cp "$test" "$work/$user/tests/use.rs"
done
[ "${#crates[@]}" -gt 0 ] ||
    fail "package_check.sh" "cargo made no packages in $target/package" "see $work/cargo.log"
cp crates/bmtrain-dist/tests/it/launch.rs "$work/use-bmtrain-dist/tests"
for directory in examples/tests/recipes/own_*/; do
    crate="$(basename "$directory")"
    crates+=("$crate")
    cp -r "$directory" "$work/$crate"
    sed -i "${paths[@]}" "$work/$crate/Cargo.toml"
done

{
    printf '[workspace]\nresolver = "3"\nmembers = ['
    printf '"%s", ' "${crates[@]}"
    printf ']\n\n[patch.crates-io]\n%s\n' "$patches"
} >"$work/Cargo.toml"
# The workspace's versions, so that nothing is resolved anew, and its profiles, so that dependencies are compiled once
# for both; without the profiles of packages that are not needed here.
cp Cargo.lock "$work/Cargo.lock"
cd "$work"
cargo metadata --quiet --offline --format-version 1 --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" |
    tr ',' '\n' | sed -n 's/^.*"name":"\([^"]*\)"$/\1/p' >packages
awk 'FNR == NR { is_needed[$1] = 1; next }
    /^\[/ {
        shown = /^\[profile\.(dev|test)[].]/
        if (split($0, part, /\.package\.|\]/) > 2) shown = shown && part[2] in is_needed
    }
    shown' packages "$root/Cargo.toml" >>Cargo.toml

for crate in "$@"; do
    [[ " ${crates[*]} " == *" $crate "* ]] ||
        fail "package_check.sh $crate" "there is no such crate" "name some of ${crates[*]}"
done

# tested CRATE: builds and tests a crate by itself, so that it has no features that only another one asks for. Every
# test in its sources has to be among those that passed.
tested() {
    local written ran
    either_way cargo test --quiet --no-run --package "$1" || return 1
    cargo test --no-fail-fast --package "$1" 2>&1 | tee "$work/tests.log" || return 1
    written="$(find "$1" -name '*.rs' -exec cat {} + | grep -c '^ *#\[test\]$')"
    ran="$(grep -c '^test .* \.\.\. ok$' "$work/tests.log")"
    [ "$written" -gt 0 ] && [ "$ran" -ge "$written" ] && return
    note "error: $1: $ran tests passed of $written that are in its sources"
    return 1
}

export CARGO_TARGET_DIR="$target"
status=0
for crate in "${@:-"${crates[@]}"}"; do
    tested "$crate" || status=1
done
exit "$status"
