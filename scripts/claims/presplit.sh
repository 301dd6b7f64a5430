#!/usr/bin/env bash
# Sentences of the novel Botchan by `corpus presplit` and by NLTK's Punkt, which learned its abbreviations from the same
# text. The figure is the boundaries inside paragraphs that both have, over Punkt's and over ours, in percent. ok: at
# least 95 of each.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"
need_pip
build corpus
"$root/scripts/assets.sh" tok-spm
python="$("$root/scripts/text_env.sh")"
scratch
novel="$cache/assets/sentencepiece/botchan.txt"
"$python" "$root/scripts/claims/presplit.py" paragraphs "$novel" "$scratch/novel.jsonl"
"$bin/corpus" presplit "$scratch/novel.jsonl" --out "$scratch/sentences.jsonl" --quiet >&2
figure="$("$python" "$root/scripts/claims/presplit.py" compare "$scratch/novel.jsonl" "$scratch/sentences.jsonl")"
if awk -F '[/%]' '{ exit !($1 >= 95 && $2 >= 95) }' <<<"$figure"; then
    verdict "$figure" ok
else
    verdict "$figure" short
fi
