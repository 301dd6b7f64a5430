#!/usr/bin/env bash
# Near-duplicates of known similarity, 12,000 documents in pairs, by `corpus clean --near`. The figure is the recall in
# percent of pairs of Jaccard 0.9 and more, what the formula predicts and what datasketch finds with the same bands;
# then the same of all pairs above 0.5; and the pairs that are reported with a wrong similarity or without being one.
# ok: the recall is within 2 points of the formula both times and not more than 2 points below datasketch, and none is
# wrong.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"
need_pip
build corpus
python="$("$root/scripts/text_env.sh")"
scratch
"$python" "$root/scripts/claims/dedup.py" write "$scratch/pairs.jsonl"
"$bin/corpus" clean "$scratch/pairs.jsonl" --near --quiet --out "$scratch/out" >&2
"$python" "$root/scripts/claims/dedup.py" compare "$scratch/pairs.jsonl" "$scratch/out/pairs.jsonl" >"$scratch/figures"
cat "$scratch/figures" >&2
figure="$(awk '$1 == "wrong" { printf "%s_wrong", $2; next } { printf "%s:%s/%s/%s,", $1, $3, $4, $5 }' \
    "$scratch/figures")"
if awk '$1 == "wrong" { bad += $2; next }
    { off = $3 - $4; bad += off > 2 || off < -2 || $3 < $5 - 2; lines++ }
    END { exit bad || lines != 2 }' "$scratch/figures"; then
    verdict "$figure" ok
else
    verdict "$figure" short
fi
