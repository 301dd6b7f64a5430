#!/usr/bin/env bash
# Usage: scripts/browser_env.sh
#
# Makes, on first use, a directory with the pinned playwright-core, by which claims of the runs page use the system's
# Chromium, in the cache ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; about 10 MB). Prints its path.
# Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"
need npm "install Node.js 18 or later with npm, on Debian: apt-get install nodejs npm"

# A change of this line makes a new directory.
packages=(playwright-core@1.65.1)
key="$(key_of "${packages[@]}")"
install_packages() { npm install --prefix "$final" --no-audit --no-fund --ignore-scripts "${packages[@]}"; }
install_once browser "playwright-core" "make sure npm reaches its registry" install_packages
printf '%s\n' "$final"
