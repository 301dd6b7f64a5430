#!/usr/bin/env bash
# Usage: scripts/claims/pretrain.sh gpt2|bert|t5, which is what scripts/claims.sh pretrain-gpt2 and so on run
#
# A small model is pretrained from token files of the State of the Union addresses, here and in PyTorch, from the same
# initial values with the same samples: the losses of 300 steps within 1 % at the end, and at step 20 apart by less than
# 1e-4 of the first.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

kind="${1:-}"
case "$kind" in
gpt2 | bert | t5) ;;
-h | --help) usage "$0"; exit 0 ;;
*) fail "pretrain.sh $kind" "it is gpt2, bert or t5 that is pretrained" "run scripts/claims.sh for the list" ;;
esac
need_pip
"$root/scripts/assets.sh" tok prose
build pretrain corpus
python="$("$root/scripts/python_env.sh")"
scratch
peer="$root/scripts/claims/pretrain.py"

"$python" "$peer" prepare "$kind" "$cache/assets" "$scratch" >&2
cd "$scratch"
case "$kind" in
bert)
    "$bin/corpus" presplit texts.jsonl --out sentences.jsonl --quiet >&2
    "$bin/corpus" build sentences.jsonl --split-lines --tokenizer model --out tokens --quiet >&2
    ;;
*) "$bin/corpus" build texts.jsonl --append-eod --tokenizer model --out tokens --quiet >&2 ;;
esac
"$bin/corpus" samples --recipe recipe.toml --count 2400 --json >samples.jsonl
"$bin/pretrain" --recipe recipe.toml --set device.threads=2 >&2
"$python" "$peer" compare "$kind" . --threads 2
