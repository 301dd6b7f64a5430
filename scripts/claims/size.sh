#!/usr/bin/env bash
# Lines of Rust in src per crate at commit 66a0a9d and now, and how long files are.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need git "install git"
need python3 "install Python 3, on Debian: apt-get install python3"
read -r figure outcome < <(python3 "$root/scripts/claims/size.py" "$root" 66a0a9d)
verdict "$figure" "$outcome"
