#!/usr/bin/env bash
# Usage: scripts/claims.sh [ID [ARGUMENTS...]]
#
# Measures one of the project's claims afresh. The last line is `ID FIGURE ok|short`; the exit status is 0 or 1, and 75
# with `noisy` in place of ok when the machine is too busy to tell. Everything else goes to stderr.
# Without an id: the list of claims. docs/claims.md describes each claim and how it is measured. Claims of speed on the
# CPU take `--isa avx2` or `--isa avx512` and hold both sides to that instruction set.
#
# Some measure against PyTorch and install it into the cache on first use (about 6 GB; $BMTRAIN_CACHE, by default
# ~/.cache/bmtrain).
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

# claims: id and claim of every row of the table.
claims() {
    awk -F ' *\\| *' '/^\| `/ { gsub(/`/, "", $2); printf "%-23s %s\n", $2, $3 }' "$root/docs/claims.md"
}

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'') claims; exit 0 ;;
esac
claims | awk -v id="$1" '$1 == id { found = 1 } END { exit !found }' ||
    fail "claims.sh $1" "there is no claim of this name" "run scripts/claims.sh for the list"
case "$1" in
pretrain-*) exec "$root/scripts/claims/pretrain.sh" "${1#pretrain-}" ;;
parity-*) exec "$root/scripts/claims/parity.sh" "${1#parity-}" ;;
*) exec "$root/scripts/claims/$1.sh" "${@:2}" ;;
esac
