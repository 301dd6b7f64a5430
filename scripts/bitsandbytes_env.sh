#!/usr/bin/env bash
# Usage: scripts/bitsandbytes_env.sh
#
# Unpacks, on first use, the pinned package bitsandbytes into the cache ($BMTRAIN_CACHE, by default ~/.cache/bmtrain;
# about 150 MB). Prints the directory, for PYTHONPATH beside the interpreter of scripts/python_env.sh.
# Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# A change of this line makes a new directory.
packages=(bitsandbytes==0.50.2)
python="$("$root/scripts/python_env.sh")"
key="$(key_of "$python" "${packages[@]}")"
install_once bitsandbytes "the package bitsandbytes" "make sure 1 GB is free and pip is 22.3 or later" fill_directory
printf '%s\n' "$final"
