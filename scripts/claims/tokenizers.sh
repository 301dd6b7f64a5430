#!/usr/bin/env bash
# Tokenizers on real vocabularies: ids against known ones, round trip on 10 MB of mixed text, speed and memory for it
# and for 10 MiB of one character or of a control token's name. The figure is pairs of texts and ids that agree, round
# trips that give the text back, the slowest MB/s, the most memory over the input's. ok: all agree, all lossless kinds
# give the text back, at least 1 MB/s, at most 20 times the input.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"
need_cargo
need_pip
"$root/scripts/assets.sh" tok tok-llama tok-spm vocabs
scratch
(cd "$root" && cargo build --release --locked --quiet --package model-center --example tokenizer_figures) >&2
program="$bin/examples/tokenizer_figures"
assets="$cache/assets"
mixed="$scratch/mixed.txt"
python3 "$root/scripts/mixed_text.py" "$mixed" 10 "$assets/sentencepiece/botchan.txt" \
    "$assets/tokenizers/chinese/words.tsv" "$root"

value() { sed -n "s/^$1 //p" "$scratch/out"; }
outcome=ok
"$program" pairs "$assets/vocabularies" >"$scratch/out" || outcome=short
pairs="$(value pairs)"

# Kinds that lose nothing, then those that do: WordPiece and what trims spaces.
lossless=("$assets/tokenizers/gpt2" "$assets/tokenizers/roberta" "$assets/tokenizer-llama/tokenizer.model")
others=("$assets/tokenizers/bert" "$assets/tokenizers/chinese" "$assets/sentencepiece/botchan_en_unigram_1000.model")
trips=0 slowest=1000000 most=0
# take WHAT ARGUMENTS...: one measurement of the tokenizer.
take() {
    "$program" "${@:2}" >"$scratch/out"
    note "$tokenizer: $1, $(tr '\n' ' ' <"$scratch/out")"
    slowest="$(awk -v a="$slowest" -v b="$(value mbs)" 'BEGIN { print (b < a ? b : a) }')"
    most="$(awk -v a="$most" -v b="$(value memory)" 'BEGIN { print (b > a ? b : a) }')"
}
measure() {
    take "mixed text" text "$tokenizer" "$mixed"
    trip="$(value trip)"
    for repeated in a ' ' 7 '!' $'\n' 船 🚢 $'\xCC\x81' '</s>'; do
        take "10 MiB of '$repeated'" one "$tokenizer" "$repeated" 10
    done
}
for tokenizer in "${lossless[@]}"; do
    measure
    if [ "$trip" = ok ]; then trips=$((trips + 1)); fi
done
for tokenizer in "${others[@]}"; do measure; done
[ "$trips" -eq "${#lossless[@]}" ] || outcome=short
awk -v s="$slowest" -v m="$most" 'BEGIN { exit !(s >= 1 && m <= 20) }' || outcome=short
verdict "$pairs,$trips/${#lossless[@]}_trips,${slowest}MB/s,${most}x" "$outcome"
