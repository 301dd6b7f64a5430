#!/usr/bin/env bash
# Usage: scripts/gpu_bundle.sh [--profile NAME] [--architectures sm_80,sm_89,sm_90a,sm_100] DIRECTORY
#
# Makes what a first run on a GPU needs and DIRECTORY.tar.gz of it, to be copied to a machine without cargo and without
# a network: gpu-check, stripped; its kernels compiled for A100 (sm_80), RTX 40 and L40 (sm_89), Hopper (sm_90a) and
# Blackwell (sm_100); PyTorch's side of the models, torch_gpu_step.py; run.sh with the calls (docs/gpu-check.md).
# Other devices need NVRTC, which compiles the sources in gpu-check.
#
# The profile is cargo's, release by default. DIRECTORY must not exist. An archive of 64 MiB or more is an error. The
# machine that makes it needs no GPU, but a C library no newer than the other machine's.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

profile=release
architectures=sm_80,sm_89,sm_90a,sm_100
directory=
while [ $# -gt 0 ]; do
    case "$1" in
    -h | --help) usage "$0"; exit 0 ;;
    --profile | --architectures)
        [ $# -gt 1 ] || fail "gpu_bundle.sh $1" "it has no value" "see scripts/gpu_bundle.sh --help"
        if [ "$1" = --profile ]; then profile="$2"; else architectures="$2"; fi
        shift
        ;;
    -*) fail "gpu_bundle.sh $1" "there is no such option" "see scripts/gpu_bundle.sh --help" ;;
    *) directory="$1" ;;
    esac
    shift
done
[ -n "$directory" ] || fail "gpu_bundle.sh" "no directory is named" "see scripts/gpu_bundle.sh --help"
[ ! -e "$directory" ] || fail "gpu_bundle.sh $directory" "it is there already" "remove it, or name another directory"
need python3 "install Python 3.9 or newer"
need strip "install binutils, on Debian: apt-get install binutils"
need_cargo
toolkit="$("$root/scripts/cuda_env.sh")"
mkdir -p "$directory"
directory="$(cd "$directory" && pwd)"
texts="$(mktemp -d)"
trap 'rm -rf "$texts"' EXIT

cd "$root"
# Cargo calls the directory of the profile dev debug.
built="$target/${profile/#dev/debug}"
cargo build --locked --profile "$profile" --package bmtrain-bench --bin gpu-check >&2
strip -o "$directory/gpu-check" "$built/gpu-check"
cargo run --locked --quiet --package bmtrain-kernels --example texts "$texts" >&2
python3 "$root/scripts/cubins.py" "$toolkit" "$texts" "$directory/kernels" "$cache/cuda/cubins" \
    "${architectures//,/ }" >&2
cp "$root/scripts/torch_gpu_step.py" "$directory"
cp "$root/scripts/gpu_run.sh" "$directory/run.sh"
tar -C "$(dirname "$directory")" -czf "$directory.tar.gz" "$(basename "$directory")"

bytes="$(stat -c %s "$directory.tar.gz")"
[ "$bytes" -lt $((64 << 20)) ] ||
    fail "gpu_bundle.sh $directory" "its archive has $((bytes >> 20)) MiB, and 63 are the most" \
    "leave out --architectures, or take the profile release"
note "$directory: $(du -sb "$directory" | awk '{ print int($1 / 1048576) }') MiB, as archive $((bytes >> 20)) MiB"
printf '%s\n' "$directory.tar.gz"
