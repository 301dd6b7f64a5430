#!/usr/bin/env bash
# Our matrix products over the fastest of the gemm crate, OpenBLAS and PyTorch, for every shape of `cpu_bench gemm` on
# one thread and two: at least 0.95 for each shape and 1.0 in the geometric mean. `--isa avx2` (default) or `avx512`.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

isa_option avx2 "$@"
peer=gemm
[ "$isa" = avx2 ] || peer+=,avx512
python="$("$root/scripts/python_env.sh")"
build cpu_bench
(cd "$root/scripts/peers" &&
    cargo build --release --locked --quiet --features "$peer" --target-dir "$target/peers-$isa") >&2
exec "$python" "$root/scripts/claims/gemm_shapes.py" "$bin/cpu_bench" \
    "$target/peers-$isa/release/gemm_peer" --isa "$isa" ${rest[@]+"${rest[@]}"}
