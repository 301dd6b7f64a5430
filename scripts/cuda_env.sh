#!/usr/bin/env bash
# Usage: scripts/cuda_env.sh
#
# Installs, on first use, NVIDIA's compilers and disassembler from the Python package index into the cache
# ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; about 200 MB to fetch, 500 MB on disk). No driver and no GPU is needed
# to compile. Prints the directory, in which there are bin, lib and include.
# The library does not need it: it takes NVRTC from wherever it is installed. Tests of compilation do.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# All of one toolkit, 13.0, and without what they ask for themselves: that is not pinned, and versions must not mix. A
# change of these lines makes a new directory. The disassembler is a program by itself, and the package index has it
# from 13.2 on; it reads what 13.0 writes.
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-nvrtc==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    nvidia-cuda-nvdisasm==13.2.86)
key="$(key_of "${packages[@]}")"
install_once cuda "NVIDIA's compilers" "make sure 1 GB is free" fill_directory --no-compile --only-binary :all:
printf '%s\n' "$final/nvidia/cu13"
