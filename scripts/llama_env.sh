#!/usr/bin/env bash
# Usage: scripts/llama_env.sh avx2|avx512|native
#
# Makes, on first use, the Python environment with a pinned llama.cpp that comparisons of generation need, compiled for
# the instruction set or, with `native`, for all that this processor has, in the cache ($BMTRAIN_CACHE, by default
# ~/.cache/bmtrain; 80 MB to fetch, 200 MB on disk, some ten minutes on two cores). Prints the path of its interpreter.
# Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

# The instruction sets that our CPU kernels use, whatever this machine has beyond them. What is not listed is as
# llama.cpp has it: a release build, OpenMP, and its own fast matrix products. Images are left out.
options=(GGML_NATIVE=OFF GGML_SSE42=ON GGML_AVX=ON GGML_AVX2=ON GGML_BMI2=ON GGML_FMA=ON GGML_F16C=ON)
processor=()
case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
avx2) options+=(GGML_AVX512=OFF LLAVA_BUILD=OFF) ;;
avx512) options+=(GGML_AVX512=ON LLAVA_BUILD=OFF) ;;
native)
    # By Clang: compiled by GCC 12, llama.cpp stops with an illegal instruction where it multiplies by tiles of AMX.
    options=(GGML_NATIVE=ON LLAVA_BUILD=OFF CMAKE_C_COMPILER=clang CMAKE_CXX_COMPILER=clang++)
    # What is compiled runs on this kind of processor.
    processor=("$(grep -m1 -E '^(flags|Features)' /proc/cpuinfo 2>/dev/null || uname -m)")
    ;;
*) fail "llama_env.sh ${1:-}" "an instruction set is needed" "use avx2, avx512 or native" ;;
esac

# A change of these lines makes a new environment. gguf writes the model files.
packages=(llama-cpp-python==0.3.36 gguf==0.19.0 numpy==2.4.6)
key="$1-$(key_of "${packages[@]}" "${options[@]}" ${processor[@]+"${processor[@]}"})"
if [ ! -e "$cache/llama/$key/complete" ]; then
    need cmake "install CMake 3.21 or later, on Debian: apt-get install cmake"
    if [ "$1" = native ]; then
        need clang++ "install Clang with its OpenMP, on Debian: apt-get install clang libomp-dev"
    else
        need c++ "install a C++ compiler, on Debian: apt-get install g++"
    fi
fi
# pip would take a wheel that it built for another instruction set: no cache. One job for each processor, unless
# CMAKE_BUILD_PARALLEL_LEVEL is set.
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" CMAKE_ARGS="${options[*]/#/-D}"
install_once llama "llama.cpp for $1" "make sure 1 GB is free and pip is 22.3 or later" \
    fill_environment --no-cache-dir --no-binary llama-cpp-python
printf '%s\n' "$final/bin/python"
