#!/usr/bin/env bash
# Training in bf16 ends where training in f32 does: the quickstart's MiniLM, and a small GPT-2 from scratch after 200
# steps on Moby Dick. Loss on held-out data within 1 % of f32's, accuracy within 1 point. On a processor that does not
# multiply bf16, where products of bf16 are computed in f32: exit status 75.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

needs_bf16
quickstart_data
"$root/scripts/assets.sh" tok prose
build finetune
python="$("$root/scripts/python_env.sh")"
scratch
"$python" "$root/scripts/claims/scratch_gpt2.py" prepare "$cache/assets" "$scratch" >&2
novel="$cache/assets/prose/moby_dick.txt"
lines="$(wc -l <"$novel")"
head -n "$((lines * 9 / 10))" "$novel" >"$scratch/train.txt"
tail -n "+$((lines * 9 / 10 + 1))" "$novel" >"$scratch/held_out.txt"

for dtype in f32 bf16; do
    note "run in $dtype"
    quickstart_train "$scratch/minilm-$dtype" --set "model.dtype=$dtype" --set eval.every=end
    "$bin/finetune" --recipe "$root/examples/recipes/prose_gpt2.toml" --set "model.path=$scratch/model" \
        --set "data.train=$scratch/train.txt" --set "data.eval=$scratch/held_out.txt" \
        --set train.steps=200 --set "model.dtype=$dtype" --set "output.dir=$scratch/gpt2-$dtype" >&2
done
exec python3 "$root/scripts/claims/loss_bf16.py" "$id" "$scratch"
