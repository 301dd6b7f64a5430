#!/usr/bin/env bash
# Usage: scripts/tensorboard_env.sh
#
# Makes, on first use, the Python environment with the pinned package tensorboard, in the cache ($BMTRAIN_CACHE, by
# default ~/.cache/bmtrain; about 200 MB). Prints the path of its interpreter.
# Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# A change of this line makes a new environment.
packages=(tensorboard==2.21.0)
key="$(key_of "${packages[@]}")"
install_once tensorboard "the package tensorboard" "make sure 1 GB is free and pip is 22.3 or later" fill_environment
printf '%s\n' "$final/bin/python"
