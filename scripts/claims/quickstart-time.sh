#!/usr/bin/env bash
# The quickstart's build at commit 66a0a9d and at HEAD, each in a fresh clone without anything built and with crates
# downloaded before: HEAD's takes at most 60 % of the seconds. Download, build and training of HEAD apart.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

base=66a0a9d
need git "install git"
need_cargo
need_pip
scratch
# A cargo without crates; where it downloads from is the user's setting.
home="${CARGO_HOME:-$HOME/.cargo}"
mkdir "$scratch/cargo"
for setting in config.toml config; do
    [ ! -f "$home/$setting" ] || cp "$home/$setting" "$scratch/cargo/"
done
export CARGO_HOME="$scratch/cargo"
unset CARGO_TARGET_DIR
host="$(rustc -vV | sed -n 's/^host: //p')"

# build COMMIT: into a clone of its own, by the command of its quickstart.sh; sets fetched and built, in seconds.
build() {
    local started command
    git clone --quiet "$root" "$scratch/$1"
    git -C "$scratch/$1" checkout --quiet --detach "$1"
    started=$SECONDS
    (cd "$scratch/$1" && cargo fetch --locked --target "$host") >&2
    fetched=$((SECONDS - started))
    started=$SECONDS
    # shellcheck disable=SC2016 # the line of the other script, as it is written
    command="$(sed -nE 's/^\(cd "\$root" && (cargo build .*)\)$/\1/p' "$scratch/$1/scripts/quickstart.sh")"
    [ -n "$command" ] || fail "quickstart.sh at $1" "no line of it builds" "write it as (cd ... && cargo build ...)"
    (cd "$scratch/$1" && eval "time $command --offline --quiet") >&2
    built=$((SECONDS - started))
    note "$1: crates $fetched s, build $built s"
}
build "$base"
before=$built
rm -rf "${scratch:?}/cargo/registry" "${scratch:?}/$base"
head="$(git -C "$root" rev-parse HEAD)"
build "$head"
# What is built is there: its build takes nothing.
quickstart="$(BMTRAIN_CACHE="$scratch/cache" "$scratch/$head/scripts/quickstart.sh" --out "$scratch/run" |
    tee /dev/stderr | tail -n 1)"
read -r assets trained < <(\
    sed -nE 's/^download ([0-9]+) s \| build [0-9]+ s \| train ([0-9]+) s .*/\1 \2/p' <<<"$quickstart")
ratio="$(awk -v now="$built" -v before="$before" 'BEGIN { printf "%.2f", now / before }')"
figure="$ratio,download:$((fetched + assets))s,build:${before}s->${built}s,train:${trained}s"
if awk -v r="$ratio" 'BEGIN { exit !(r <= 0.60) }'; then verdict "$figure" ok; else verdict "$figure" short; fi
