#!/usr/bin/env bash
# Usage: scripts/others_env.sh
#
# Makes, on first use, the Python environment with the pinned programs whose checkpoints and data are read, in the cache
# ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; about 7 GB, some minutes). Prints the path of its interpreter. Neither
# the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# fill: DeepSpeed's setup imports PyTorch, so that it comes second.
fill() {
    fill_environment &&
        DS_BUILD_OPS=0 python3 -m pip --python "$final/bin/python" install --quiet --disable-pip-version-check \
            --no-build-isolation "$deepspeed"
}

# A change of these lines makes a new environment.
packages=(torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6 datasets==5.2.0 pyarrow==26.0.1
    setuptools==84.2.1 wheel==0.48.0)
deepspeed=deepspeed==0.19.8
key="$(key_of "${packages[@]}" "$deepspeed")"
install_once others "the programs that others save with" "make sure 8 GB are free and pip is 22.3 or later" fill
printf '%s\n' "$final/bin/python"
