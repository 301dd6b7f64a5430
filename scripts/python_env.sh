#!/usr/bin/env bash
# Usage: scripts/python_env.sh
#
# Makes, on first use, the Python environment with the pinned PyTorch that goldens and comparisons need, in the cache
# ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; about 6 GB, some minutes). Prints the path of its interpreter.
# Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# A change of these lines makes a new environment.
packages=(torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6 gguf==0.19.0
    accelerate==1.15.0 peft==0.21.2)
key="$(key_of "${packages[@]}")"
install_once python "PyTorch for comparisons" "make sure 8 GB are free and pip is 22.3 or later" fill_environment
printf '%s\n' "$final/bin/python"
