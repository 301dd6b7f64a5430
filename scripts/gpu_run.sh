#!/usr/bin/env bash
# Usage: ./run.sh [1] [2] [3] [4] [5]
#
# The calls of a first run on a GPU, from a directory that scripts/gpu_bundle.sh made; all five if none is named:
#   1  each instruction of inline assembly, and every row of the conformance table, against the CPU
#   2  training of tiny models against the CPU, and twice for the same bits; resumed, offloaded, on two ranks
#   3  overlap of copies, speed of every kernel
#   4  speed of whole models with a step's kernel table, attention on products of warpgroups, and the models' steps in
#      PyTorch where Python has it
#   5  options of the backend that are off by default, each beside the ordinary way, and GPT-2 124M with some of them
#
# Each writes callN.json and callN.txt, and 5 with.json besides, into $OUT (out beside this file) and ends within $LIMIT
# seconds (570). A call that is started again goes on with its file. Kernels come compiled for the device's architecture
# from the directory kernels; for other devices, and with BMTRAIN_CUDA_KERNELS set to nothing, NVRTC compiles them.
# $PYTHON (python3) is asked for PyTorch; $GPU_CHECK_OPTIONS are passed to gpu-check. The status is 1 if a call failed.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${OUT:-$here/out}"
limit="${LIMIT:-570}"
python="${PYTHON:-python3}"
status=0

case "${1:-}" in
-h | --help) awk 'NR == 1 { next } /^#/ { sub(/^# ?/, ""); print; next } { exit }' "$0"; exit 0 ;;
esac
[ $# -gt 0 ] || set -- 1 2 3 4 5
for call in "$@"; do
    case "$call" in
    [1-5]) ;;
    *) printf 'run.sh: there is no call %s: see run.sh --help\n' "$call" >&2; exit 1 ;;
    esac
done

# kernels_of CAPABILITY: the directory of kernels that a device of this compute capability runs. Machine code is for its
# major version, from its own minor version on.
kernels_of() {
    case "$1" in
    8.0 | 8.6 | 8.7) echo "$here/kernels/sm_80" ;;
    8.9) echo "$here/kernels/sm_89" ;;
    9.0) echo "$here/kernels/sm_90a" ;;
    10.*) echo "$here/kernels/sm_100" ;;
    esac
}

if [ -z "${BMTRAIN_CUDA_KERNELS+set}" ] && command -v nvidia-smi >/dev/null 2>&1; then
    capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader --id=0 2>/dev/null || true)"
    kernels="$(kernels_of "$capability")"
    if [ -d "$kernels" ]; then export BMTRAIN_CUDA_KERNELS="$kernels"; fi
fi
[ -n "${BMTRAIN_CUDA_KERNELS:-}" ] || unset BMTRAIN_CUDA_KERNELS

# check SECONDS NAME PARTS [OPTION..]: gpu-check with these parts, to the files of this name.
check() {
    local seconds="$1" name="$2" parts="$3"
    shift 3
    printf '== %s: %s, at most %s s\n' "$name" "$parts" "$seconds" >&2
    # shellcheck disable=SC2086
    timeout --kill-after=10 "$seconds" "$here/gpu-check" --only "$parts" --json "$out/$name.json" --resume \
        --part-limit "$seconds" "$@" ${GPU_CHECK_OPTIONS:-} >"$out/$name.txt" || status=1
    cat "$out/$name.txt"
}

# Without a device one line reports what is missing.
"$here/gpu-check" --only environment >/dev/null 2>"$here/.missing" ||
    { cat "$here/.missing" >&2; rm -f "$here/.missing"; exit 1; }
rm -f "$here/.missing"
mkdir -p "$out"
for call in "$@"; do
    case "$call" in
    1) check "$limit" call1 environment,intrinsics,conformance ;;
    2) check "$limit" call2 environment,training,modes ;;
    3) check "$limit" call3 environment,overlap,kernels ;;
    4)
        # Half of the time is PyTorch's.
        check "$((limit / 2))" call4 environment,models,warpgroups
        if ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1; then
            printf 'run.sh: %s has no PyTorch with a CUDA device: the models are not compared\n' "$python" >&2
            continue
        fi
        timeout --kill-after=10 "$((limit / 2))" "$python" "$here/torch_gpu_step.py" --json "$out/torch.json" \
            --like "$out/call4.json" || status=1
        "$here/gpu-check" --json "$out/call4.json" --compare "$out/torch.json" | tee "$out/compare.txt" || status=1
        ;;
    5)
        check "$((limit / 2))" call5 environment,variants
        check "$((limit / 2))" with environment,models --model "GPT-2 124M" \
            --with graphs,timed-products,warpgroup-attention,wide-queries,wide-keys
        ;;
    esac
done
exit "$status"
