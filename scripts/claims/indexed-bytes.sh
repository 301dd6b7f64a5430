#!/usr/bin/env bash
# Token files and index maps against megatron-core's: the same documents give the same bytes, from text and from ids, in
# every dtype and merged; each reads the other's; the maps of the order `megatron` have the same numbers. The figure is
# files and maps that are equal, of all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

"$root/scripts/assets.sh" prose tok
beside_corpus_tools indexed_bytes.py "$cache/assets/prose" "$cache/assets/tokenizers/gpt2"
if [ "${figure%/*}" = "${figure#*/}" ]; then verdict "$figure" ok; else verdict "$figure" short; fi
