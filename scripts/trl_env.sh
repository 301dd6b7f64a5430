#!/usr/bin/env bash
# Usage: scripts/trl_env.sh
#
# Makes, on first use, a directory with the pinned TRL and what it imports beside the packages of scripts/python_env.sh,
# in the cache ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; 300 MB, some minutes). Prints the directory, which belongs
# at the end of Python's path. Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# A change of these lines makes a new directory.
packages=(trl==1.16.0 datasets==5.2.0 pyarrow==22.0.0 dill==0.4.1 multiprocess==0.70.19 xxhash==4.1.0 pandas==3.1.1
    python-dateutil==4.0.0 six==1.17.0 pytz==2026.6 tzdata==2026.6 requests==2.34.2 aiohttp==3.14.5 httpx==0.28.1)
python="$("$root/scripts/python_env.sh")"
key="$(key_of "$python" "${packages[@]}")"
install_once trl "TRL for comparisons" "make sure 1 GB is free and pip is 22.3 or later" fill_directory
printf '%s\n' "$final"
