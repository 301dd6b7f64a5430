#!/usr/bin/env bash
# Building token files with GPT-2's tokenizer against Hugging Face's tokenizers with megatron-core's builder in as many
# processes as our threads: 200 MB of real prose, the addresses of the set prose over and over, and the same bytes at
# the end. Then the memory of ten times as much, and time and memory of the index maps of 10^8 documents. The figure is
# our MB/s over theirs, the peak memory of the large build, the seconds of the maps and their peak memory. ok: at least
# 1.5 times, at most 300 MB, 60 s and 2 GB. `--megabytes N` and `--documents N` take less.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

"$root/scripts/assets.sh" prose tok
beside_corpus_tools corpus_speed.py "$cache/assets/prose" "$cache/assets/tokenizers/gpt2" "$@"
IFS=, read -r times build_memory seconds maps_memory <<<"$figure"
outcome=short
if awk -v t="${times%x}" -v b="${build_memory%MB}" -v s="${seconds%s}" -v m="${maps_memory%MB}" \
    'BEGIN { exit !(t >= 1.5 && b <= 300 && s <= 60 && m <= 2000) }'; then outcome=ok; fi
verdict "$figure" "$outcome"
