#!/usr/bin/env bash
# Vocabularies that `tokenizer train --sentencepiece` trains on a novel, opened by the reference library: 10,000 lines
# of English, code, Chinese and random characters have the ids that our own reader gives (Unigram, BPE, characters) or
# that a table gives (whole tokens between spaces, which our reader refuses). The figure is lines that agree of each
# kind. ok: all of them.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"
need_pip
build tokenizer
"$root/scripts/assets.sh" tok tok-spm
python="$("$root/scripts/text_env.sh")"
scratch
novel="$cache/assets/sentencepiece/botchan.txt"
python3 "$root/scripts/mixed_text.py" "$scratch/mixed.txt" 3 "$novel" \
    "$cache/assets/tokenizers/chinese/words.tsv" "$root"
"$python" "$root/scripts/claims/sentencepiece_train.py" lines "$scratch/mixed.txt" 10000 >"$scratch/lines.txt"
figure="" outcome=ok
for kind in unigram bpe characters whole-words; do
    "$bin/tokenizer" train "$novel" --sentencepiece --kind "$kind" --vocab-size 4000 --out "$scratch/$kind" >&2
    if [ "$kind" != whole-words ]; then
        "$bin/tokenizer" encode "$scratch/$kind" --bare --file "$scratch/lines.txt" >"$scratch/ids.txt"
    else
        : >"$scratch/ids.txt"
    fi
    agree="$("$python" "$root/scripts/claims/sentencepiece_train.py" agree "$scratch/$kind" "$scratch/lines.txt" \
        "$scratch/ids.txt")"
    figure+="${figure:+,}$kind:$agree"
    [ "$agree" = 10000/10000 ] || outcome=short
done
verdict "$figure" "$outcome"
