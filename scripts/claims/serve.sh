#!/usr/bin/env bash
# `serve` on SmolLM2-135M-Instruct: openai's Python client streams a chat and completions whose pieces are the whole;
# lm-eval's `local-completions` gives the results of its own back end of transformers on a task of multiple choice;
# 64 clients for a minute, of whom one in a hundred goes away, lose nothing and leave no sequence, and memory stays
# flat; 16 requests at a time have at least three times the throughput of one. The figure is checks that hold, of all;
# the largest relative difference of a log-likelihood from transformers' in float64, of `serve` and of transformers in
# float32; responses of the minute; the ratio of throughputs.
# Arguments: seconds of the load, by default 60; `debug` for a debug build.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
"$root/scripts/assets.sh" llama prose
if [ "${2:-}" = debug ]; then
    bin="$target/debug"
else
    build convert serve
fi
python="$("$root/scripts/python_env.sh")"
packages="$("$root/scripts/serve_env.sh")"
scratch
"$bin/convert" "$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/smollm2" --dtype f32 >&2
figure="$(PYTHONPATH="$packages" "$python" "$root/scripts/claims/serve.py" "$bin/serve" "$scratch" \
    "$cache/assets/prose/moby_dick.txt" "${1:-60}")"
IFS=, read -r checks difference _ _ ratio <<<"$figure"
within='BEGIN { exit !(d < 1e-5 && r >= 3) }'
if [ "${checks%/*}" = "${checks#*/}" ] && awk -v d="$difference" -v r="${ratio%x}" "$within"; then
    verdict "$figure" ok
else
    verdict "$figure" short
fi
