#!/usr/bin/env bash
# Token files and index maps against megatron-core's: the same documents give the same bytes, from text and from ids, in
# every dtype and merged; each reads the other's; the maps of the order `megatron` have the same numbers. The figure is
# files and maps that are equal, of all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
"$root/scripts/assets.sh" prose tok
build corpus
python="$("$root/scripts/python_env.sh")"
packages="$("$root/scripts/corpus_env.sh")"
scratch
figure="$(PYTHONPATH="$packages" "$python" "$root/scripts/claims/indexed_bytes.py" "$bin/corpus" \
    "$cache/assets/prose" "$cache/assets/tokenizers/gpt2" "$scratch")"
if [ "${figure%/*}" = "${figure#*/}" ]; then verdict "$figure" ok; else verdict "$figure" short; fi
