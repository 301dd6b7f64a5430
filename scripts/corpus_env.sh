#!/usr/bin/env bash
# Usage: scripts/corpus_env.sh
#
# Makes, on first use, a directory with the pinned packages that token files and records are compared with:
# megatron-core and tfrecord, for the interpreter of scripts/python_env.sh, in the cache ($BMTRAIN_CACHE, by default
# ~/.cache/bmtrain; 12 MB). Prints its path, for PYTHONPATH. Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# A change of these lines makes a new directory. What the first two need besides is in the environment.
packages=(megatron-core==0.16.1 tfrecord==1.14.6 protobuf==6.33.5 crc32c==2.8)
python="$("$root/scripts/python_env.sh")"
key="$(key_of "$python" "${packages[@]}")"
install_once corpus-env "megatron-core for comparisons" "make sure that Python is 3.10 or later" fill_directory
printf '%s\n' "$final"
