#!/usr/bin/env bash
# What training steps of known models launch on a device, and an estimate of their time, against kernels/steps.txt. The
# steps run through the CUDA backend on an emulated driver that only keeps account: no GPU takes part, and no time is
# measured. The figure is the launches of each step; the estimates are on stderr and in the ledger.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need g++ "install a C++ compiler, which the emulator needs, on Debian: apt-get install g++"
tests --package bmtrain-bench --test step_ledger
launches="$(grep -o '[0-9]* launches' "$root/kernels/steps.txt" | grep -o '^[0-9]*' | paste -sd, -)"
if [ "$failed" -gt 0 ] || [ "$skipped" -gt 0 ] || [ "$passed" -eq 0 ]; then verdict "$launches" short; fi
# Of GPT-2 124M without and with dropout, and of the fine-tuning of BERT-base at two sizes. Llama has no bound.
most=(450 450 300 300)
IFS=, read -ra counts <<<"$launches"
[ "${#counts[@]}" -ge "${#most[@]}" ] || verdict "$launches" short
for at in "${!most[@]}"; do
    [ "${counts[at]}" -le "${most[at]}" ] || verdict "$launches" short
done
verdict "$launches" ok
