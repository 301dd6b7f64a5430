#!/usr/bin/env bash
# A small GPT-2 is trained from scratch on the State of the Union addresses, here and in PyTorch, from the same weights
# with the same batches: the loss on held-out addresses after 300 steps over PyTorch's; within 1 %.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
"$root/scripts/assets.sh" tok prose
build finetune
python="$("$root/scripts/python_env.sh")"
scratch
peer="$root/scripts/claims/scratch_gpt2.py"

"$python" "$peer" prepare "$cache/assets" "$scratch" >&2
"$bin/finetune" --recipe "$root/examples/recipes/prose_gpt2.toml" --set "model.path=$scratch/model" \
    --set "data.train=$scratch/train" --set "data.eval=$scratch/eval" --set "output.dir=$scratch/run" \
    --set device.threads=2 --set log.every=1 >&2
"$python" "$peer" compare "$scratch" "$root/examples/recipes/prose_gpt2.toml" --threads 2
