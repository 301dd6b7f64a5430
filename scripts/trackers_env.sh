#!/usr/bin/env bash
# Usage: scripts/trackers_env.sh
#
# Makes, on first use, the Python environment with the pinned trackers of experiments and what their importers need, in
# the cache ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; about 2 GB, some minutes). Prints the path of its interpreter.
# Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# A change of this line makes a new environment.
packages=(wandb==0.31.0 aim==3.29.1 trackio==0.43.0 tbparse==0.0.9 tensorboard==2.21.0 tensorflow-cpu==2.21.0)
key="$(key_of "${packages[@]}")"
install_once trackers "the trackers" "make sure 3 GB are free and pip is 22.3 or later" fill_environment
printf '%s\n' "$final/bin/python"
