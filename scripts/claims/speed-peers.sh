#!/usr/bin/env bash
# Training steps of BERT-base and MiniLM: our tokens/s over burn's and over candle's, at least 2.5 in all four cases, in
# less memory. `--pairs N`; `--isa avx2` or `avx512`.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

# Both multiply with the gemm crate, which has no variable for the instruction set: it is built for one. With AVX-512
# it falls back to AVX2 where the processor has no other.
isa_option '' "$@"
[ -z "$isa" ] || rest+=(--isa "$isa")
isa="${isa:-avx512}"
peers=burn,candle
[ "$isa" = avx2 ] || peers+=,avx512
need python3 "install Python 3, on Debian: apt-get install python3"
build step_bench
(cd "$root/scripts/peers" &&
    cargo build --release --locked --quiet --features "$peers" --target-dir "$target/peers-$isa") >&2
exec python3 "$root/scripts/claims/speed_peers.py" "$bin/step_bench" "$target/peers-$isa/release" \
    ${rest[@]+"${rest[@]}"}
