#!/usr/bin/env bash
# Usage: scripts/claims.sh [ID [ARGUMENTS...]]
#        scripts/claims.sh --report [ID...]
#
# Measures one of the project's claims afresh. The last line is `ID FIGURE ok|short`; the exit status is 0 or 1, and 75
# with `noisy` in place of ok when the machine is too busy to tell. Everything else goes to stderr.
# Without an id: the list of claims. docs/claims.md describes each claim and how it is measured. Claims of speed on the
# CPU take `--isa avx2` or `--isa avx512` and hold both sides to that instruction set.
#
# --report measures several claims, by default the main ones of speed and memory on the CPU, and prints a Markdown table
# of their figures under a line with the processor, its instruction set, the commit and the date: for
# docs/performance.md. Its exit status is 1 if one is short.
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

# known ID: fails if there is no such claim.
known() {
    claims | awk -v id="$1" '$1 == id { found = 1 } END { exit !found }' ||
        fail "claims.sh $1" "unknown claim" "run scripts/claims.sh for the list"
}

# report ID...: the table of --report.
report() {
    [ $# -gt 0 ] || set -- speed-bert-base rss-bert-base speed-gpt2 rss-gpt2 speed-minilm speed-t5 gemm-bf16 \
        speed-bf16 speed-decode adapter-memory
    local id line short=0
    for id in "$@"; do known "$id"; done
    local processor set=portable pair
    processor="$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)"
    # The widest is the last that is found.
    for pair in asimd=neon avx2=avx2 avx512dq=avx512 avx512_bf16=avx512_bf16 amx_bf16=amx; do
        # On Intel's processors it is for requests alone, as neon_bf16 is on every one.
        if [ "$pair" = avx512_bf16=avx512_bf16 ] && ! grep -q -m 1 AuthenticAMD /proc/cpuinfo; then continue; fi
        if grep -q -m 1 -w "${pair%=*}" /proc/cpuinfo; then set="${pair#*=}"; fi
    done
    printf '%s, %s processors, %s, commit %s, %s\n\n' "${processor:-unknown processor}" "$(nproc)" "$set" \
        "$(git -C "$root" rev-parse --short HEAD)" "$(date +%F)"
    printf '| `scripts/claims.sh` | figure | |\n|---|---|---|\n'
    for id in "$@"; do
        # A claim that is short or too noisy has a line too.
        line="$("$root/scripts/claims.sh" "$id" | tail -n 1)" || true
        case "$line" in
        *' ok' | *' noisy') ;;
        *) short=1 ;;
        esac
        printf '| `%s` | %s | %s |\n' "$id" "$(cut -d ' ' -f 2 <<<"$line")" "${line##* }"
    done
    return "$short"
}

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'') claims; exit 0 ;;
--report) report "${@:2}"; exit ;;
esac
known "$1"
case "$1" in
pretrain-*) exec "$root/scripts/claims/pretrain.sh" "${1#pretrain-}" ;;
parity-*) exec "$root/scripts/claims/parity.sh" "${1#parity-}" ;;
*) exec "$root/scripts/claims/$1.sh" "${@:2}" ;;
esac
