#!/usr/bin/env bash
# Usage: scripts/package_check.sh [CRATE...]
#
# Packages every library crate as for publication, unpacks the packages, and builds and tests crates that depend on the
# packaged files and are in a workspace of their own:
#   use-LIBRARY  for each library, what a crate gets that depends on that single one, with its default features:
#                scripts/package_uses/LIBRARY.rs; for bmtrain-dist also its tests of launchers, since a build without
#                MPI refuses some
#   own_*        examples/tests/recipes: what docs/own-block.md, docs/add-a-model.md and docs/add-a-backend.md describe
# Tests the crates that are named, by default all of them. Libraries are built twice: with the feature that the tests of
# own_backend ask for, and once for all other crates; before that each crate is checked by itself, so that it compiles
# without features that only another one asks for.
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
either_way cargo package --quiet --workspace --exclude bmtrain-bench --exclude bmtrain-examples \
    --exclude cuda-emulator --no-verify --allow-dirty --locked

crates=()
libraries=()
patches=""
# How the paths of libraries in the manifests of examples/tests/recipes change.
paths=()
for package in "$target"/package/*.crate; do
    tar -xzf "$package" -C "$work"
    directory="$(basename "$package" .crate)"
    library="$(awk -F'"' '/^name = / { print $2; exit }' "$work/$directory/Cargo.toml")"
    libraries+=("$library")
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
# for both. Left out are profiles of packages that are not needed here, and of the libraries: their tests here compute
# little.
cp Cargo.lock "$work/Cargo.lock"
cd "$work"
cargo metadata --quiet --offline --format-version 1 --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" |
    tr ',' '\n' | sed -n 's/^.*"name":"\([^"]*\)"$/\1/p' >packages
awk -v libraries="${libraries[*]}" 'FNR == NR { is_needed[$1] = 1; next }
    FNR == 1 { split(libraries, names, " "); for (at in names) delete is_needed[names[at]] }
    /^\[/ {
        shown = /^\[profile\.(dev|test)[].]/
        if (split($0, part, /\.package\.|\]/) > 2) shown = shown && part[2] in is_needed
    }
    shown' packages "$root/Cargo.toml" >>Cargo.toml

for crate in "$@"; do
    [[ " ${crates[*]} " == *" $crate "* ]] ||
        fail "package_check.sh $crate" "there is no such crate" "name some of ${crates[*]}"
done

export CARGO_TARGET_DIR="$target"
[ $# -eq 0 ] || crates=("$@")
status=0
# tested CRATE...: builds crates together and runs their tests. Every test in their sources has to be among those that
# passed.
tested() {
    local crate selected=() written ran
    for crate in "$@"; do selected+=(--package "$crate"); done
    either_way cargo test --quiet --no-run "${selected[@]}" || return 1
    cargo test --no-fail-fast "${selected[@]}" 2>&1 | tee "$work/tests.log" || return 1
    written="$(find "$@" -name '*.rs' -exec cat {} + | grep -c '^ *#\[test\]$')"
    ran="$(grep -c '^test .* \.\.\. ok$' "$work/tests.log")"
    [ "$written" -gt 0 ] && [ "$ran" -ge "$written" ] && return
    note "error: $ran tests passed of $written that are in the sources of $*"
    return 1
}
together=()
for crate in "${crates[@]}"; do
    if [ "$crate" = own_backend ]; then
        tested own_backend || status=1
        continue
    fi
    together+=("$crate")
    # own_model is the one that asks for the most features.
    [ "$crate" = own_model ] || either_way cargo check --quiet --all-targets --package "$crate" || status=1
done
[ "${#together[@]}" -eq 0 ] || tested "${together[@]}" || status=1
exit "$status"
