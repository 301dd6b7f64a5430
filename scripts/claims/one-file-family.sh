#!/usr/bin/env bash
# Families of models whose name appears in their own file and the registry alone.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need python3 "install Python 3, on Debian: apt-get install python3"
read -r figure result < <(python3 "$root/scripts/claims/one_file_family.py" "$root")
verdict "$figure" "$result"
