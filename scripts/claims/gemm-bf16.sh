#!/usr/bin/env bash
# Our matrix products of bf16, by tiles of AMX or dot products of AVX512_BF16, over our own in f32 by AVX-512 and over
# PyTorch's in bf16, for every shape of `cpu_bench gemm` with 128 rows or more, on one thread and two: at least 5 times
# f32 with tiles and 1.7 times with dot products in the geometric mean, 1.0 times PyTorch in the mean and 0.9 times for
# each shape. On a processor with neither, and where dot products are slower than f32 (Intel's): exit status 75.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

needs_bf16
python="$("$root/scripts/python_env.sh")"
build cpu_bench
exec "$python" "$root/scripts/claims/gemm_bf16.py" "$bin/cpu_bench" "$@"
