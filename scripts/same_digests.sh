#!/usr/bin/env bash
# Usage: scripts/same_digests.sh BEFORE [AFTER]
#
# Shows that a change leaves results alone: builds the programs of two commits (AFTER is HEAD by default), runs the
# same training runs and the same generation with both on this machine, and compares digests of weights and optimizer
# state, metrics without wall clock, exported weights and generated tokens bit for bit. Both run on one machine because
# bits may differ between instruction sets. The last line is `same-digests EQUAL/COMPARED ok|short`; the exit status is
# 0 or 1.
#
# Needs a git checkout and what scripts/quickstart.sh needs. Builds stay in the cache ($BMTRAIN_CACHE/digests, by
# default ~/.cache/bmtrain), about 2 GB.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'') fail "same_digests.sh" "it needs the commit to compare with" "see scripts/same_digests.sh --help" ;;
-*) fail "same_digests.sh $1" "there is no such option" "see scripts/same_digests.sh --help" ;;
esac
[ $# -le 2 ] || fail "same_digests.sh $*" "it takes one or two commits" "see scripts/same_digests.sh --help"
need git "install git"
need_cargo
need_pip

# commit NAME: its full hash.
commit() {
    git -C "$root" rev-parse --verify --quiet "$1^{commit}" ||
        fail "same_digests.sh $1" "there is no such commit in $root" "give a commit, a branch or a tag"
}
before="$(commit "$1")"
after="$(commit "${2:-HEAD}")"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"; git -C "$root" worktree prune' EXIT

# build COMMIT: puts the release programs of a commit into $cache/digests/COMMIT. Dependencies are built once for both.
build() {
    local programs="$cache/digests/$1"
    [ ! -x "$programs/generate" ] || return 0
    note "building $1"
    git -C "$root" worktree add --quiet --detach --force "$scratch/tree" "$1"
    local package=bmtrain-programs names=(bmtrain)
    # Commits before the one binary.
    if [ -e "$scratch/tree/examples/src/bin/finetune.rs" ]; then
        package=bmtrain-examples
        names=(finetune generate)
    fi
    (cd "$scratch/tree" && CARGO_TARGET_DIR="$cache/digests/target" cargo build --release --locked --quiet \
        --package "$package" "${names[@]/#/--bin=}") >&2
    mkdir -p "$programs"
    cp "${names[@]/#/$cache/digests/target/release/}" "$programs/"
    [ -e "$programs/finetune" ] || ln -s bmtrain "$programs/finetune"
    [ -e "$programs/generate" ] || ln -s bmtrain "$programs/generate"
    git -C "$root" worktree remove --force "$scratch/tree"
}
build "$before"
build "$after"

"$root/scripts/assets.sh" bert sent
sentences="$cache/data/movie_reviews"
python3 "$root/scripts/prepare_sentences.py" "$cache/assets/sentences/movie_reviews.tsv" "$sentences"
figure="$(python3 "$root/scripts/same_digests.py" "$cache/digests/$before" "$cache/digests/$after" \
    "$root" "$cache/assets/minilm" "$sentences" "$scratch")"
outcome=short
[ "${figure%/*}" != "${figure#*/}" ] || [ "$figure" = 0/0 ] || outcome=ok
printf 'same-digests %s %s\n' "$figure" "$outcome"
[ "$outcome" = ok ]
