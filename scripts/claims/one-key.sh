#!/usr/bin/env bash
# Keys of a recipe that are one row each, and no name of a key elsewhere that no row has.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need python3 "install Python 3, on Debian: apt-get install python3"
read -r figure result < <(python3 "$root/scripts/claims/one_key.py" "$root")
verdict "$figure" "$result"
