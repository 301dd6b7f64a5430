#!/usr/bin/env bash
# Our matrix products over the fastest of the gemm crate, OpenBLAS and PyTorch, for every shape of gemm_bench on one
# thread and two: at least 0.95 for each shape and 1.0 in the geometric mean. `--isa avx2` (the default) or `avx512`.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

isa_option avx2 "$@"
peer=gemm
[ "$isa" = avx2 ] || peer+=,avx512
need_cargo
python="$("$root/scripts/python_env.sh")"
(cd "$root" && cargo build --release --locked --quiet --package bmtrain-core --example gemm_bench) >&2
(cd "$root/scripts/peers" &&
    cargo build --release --locked --quiet --features "$peer" --target-dir "$target/peers-$isa") >&2
exec "$python" "$root/scripts/claims/gemm_shapes.py" "$bin/examples/gemm_bench" \
    "$target/peers-$isa/release/gemm_peer" --isa "$isa" ${rest[@]+"${rest[@]}"}
