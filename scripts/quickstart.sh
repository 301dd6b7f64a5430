#!/usr/bin/env bash
# Usage: scripts/quickstart.sh [--out DIR] [--overwrite] [--set KEY=VALUE]...
#
# Fine-tunes a real BERT (all-MiniLM-L6-v2) to tell positive from negative sentences of movie reviews, on the CPU:
# fetches model and sentences, builds, trains, and prints the seconds of each part.
#
#   --out DIR         directory of the run (default: runs/quickstart)
#   --overwrite       replace an earlier run with the same values in that directory
#   --set KEY=VALUE   change a value of examples/recipes/quickstart.toml, e.g. --set train.lr=3e-5, or
#                     --set model.dtype=bf16, faster where the processor multiplies bf16
#
# DIR holds afterwards a Hugging Face model directory, metrics.jsonl and the recipe with all its values.
# Needs Rust and Python 3 with pip; downloads go to $BMTRAIN_CACHE, by default ~/.cache/bmtrain.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

out="$root/runs/quickstart"
extra=()
while [ $# -gt 0 ]; do
    case "$1" in
    -h | --help) usage "$0"; exit 0 ;;
    --overwrite) extra+=("$1"); shift ;;
    --out | --set)
        [ $# -ge 2 ] || fail "quickstart.sh $1" "it takes a value and none was given" "see scripts/quickstart.sh --help"
        if [ "$1" = --out ]; then out="$2"; else extra+=(--set "$2"); fi
        shift 2
        ;;
    *) fail "quickstart.sh $1" "there is no such option" "see scripts/quickstart.sh --help" ;;
    esac
done
case "$out" in /*) ;; *) out="$PWD/$out" ;; esac
need_cargo
need_pip

started=$SECONDS
"$root/scripts/assets.sh" bert sent
sentences="$cache/data/movie_reviews"
python3 "$root/scripts/prepare_sentences.py" "$cache/assets/sentences/movie_reviews.tsv" "$sentences"
download_seconds=$((SECONDS - started))

started=$SECONDS
note "building (release)"
(cd "$root" && cargo build --release --locked --package bmtrain-programs --bin bmtrain --no-default-features)
build_seconds=$((SECONDS - started))

started=$SECONDS
"$bin/bmtrain" finetune --recipe "$root/examples/recipes/quickstart.toml" \
    --set "model.path=$cache/assets/minilm" \
    --set "data.train=$sentences/train.jsonl" \
    --set "data.eval=$sentences/heldout.jsonl" \
    --set "output.dir=$out" \
    ${extra[@]+"${extra[@]}"}
train_seconds=$((SECONDS - started))

printf 'download %d s | build %d s | train %d s | run in %s\n' \
    "$download_seconds" "$build_seconds" "$train_seconds" "$out"
