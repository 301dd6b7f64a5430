#!/usr/bin/env bash
# What other programs save is read as they read it: a Llama that FSDP2 trained on two CPU ranks, as it is, resharded on
# four ranks and in Hugging Face's form, three stages of DeepSpeed, and 20,000 rows that datasets and pyarrow wrote in
# five forms. The figure is tensors and rows that differ, of all. ok: none, and every set was read.
#
# Usage: scripts/claims/others.sh [ROWS]
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"
need_pip
build convert
(cd "$root" && cargo build --quiet --release --locked --package model-center --features parquet --example rows) >&2
python="$("$root/scripts/others_env.sh")"
scratch
compare="$root/scripts/claims/others.py"
"$python" "$compare" fsdp "$scratch/fsdp" >&2
: >"$scratch/figures"
for form in two four hugging_face; do
    "$bin/convert" "$scratch/fsdp/$form" "$scratch/converted/$form" --config "$scratch/fsdp/model" --dtype f32 >&2
    "$python" "$compare" tensors "$scratch/fsdp/expected.safetensors" "$scratch/converted/$form" \
        >>"$scratch/figures"
done
"$python" "$root/scripts/golden/make_deepspeed.py" --out "$scratch/deepspeed" >&2
echo '{"model_type": "none"}' >"$scratch/config.json"
for form in "$scratch"/deepspeed/*; do
    name="$(basename "$form")"
    "$bin/convert" "$form" "$scratch/converted/$name" --config "$scratch" --dtype f32 >&2
    "$python" "$compare" tensors "$form/expected.safetensors" "$scratch/converted/$name" >>"$scratch/figures"
done
"$python" "$compare" write-rows "$scratch/rows" "${1:-20000}" >&2
for form in "$scratch"/rows/*; do
    [ "$(basename "$form")" = expected.jsonl ] ||
        "$target/release/examples/rows" "$form" | "$python" "$compare" rows "$scratch/rows/expected.jsonl" \
            >>"$scratch/figures"
done
cat "$scratch/figures" >&2
figure="$(awk '{ differ += $2; all += $3; sets++ } END { printf "%d/%d_in_%d_sets", differ, all, sets }' \
    "$scratch/figures")"
if awk '{ differ += $2; empty += $3 == 0; sets++ } END { exit differ + empty > 0 || sets != 14 }' \
    "$scratch/figures"; then
    verdict "$figure" ok
else
    verdict "$figure" short
fi
