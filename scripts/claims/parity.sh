#!/usr/bin/env bash
# Usage: scripts/claims/parity.sh FAMILY, which is what scripts/claims.sh parity-FAMILY runs
#
# Tiny models of a family against goldens in 64-bit floats: hidden states, logits, losses, all gradients, 30 AdamW
# steps; kept and recomputed, on two ranks under ZeRO-3; and the directories that trained ones leave open in
# transformers with nothing missing and nothing left over, and the same logits: largest relative error below 1e-5. CPM,
# which transformers has not, opens in scripts/golden/cpm.py.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

family="${1:-}"
case "$family" in
-h | --help) usage "$0"; exit 0 ;;
esac
golden="$root/crates/model-center/tests/golden"
directories="$(find "$golden" -mindepth 3 -maxdepth 3 -path "$golden/${family}_*" -name config.json | wc -l)"
if [ -z "$family" ] || [ "$directories" -eq 0 ]; then
    fail "parity.sh $family" "there are no golden data of such a family in $golden" "run scripts/claims.sh for the list"
fi
id="parity-$family"

python="$("$root/scripts/python_env.sh")"
scratch
export BMTRAIN_EXPORTS="$scratch"
tests --release --package model-center --test it -- "golden_$family::"
if [ "$failed" -gt 0 ] || [ "$passed" -eq 0 ]; then verdict "$figure" short; fi
difference="$("$python" "$root/scripts/claims/parity.py" "$scratch" "$directories")"
if awk -v d="$difference" 'BEGIN { exit !(d < 1e-5) }'; then
    verdict "$figure/$difference" ok
else
    verdict "$figure/$difference" short
fi
