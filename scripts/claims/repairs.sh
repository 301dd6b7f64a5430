#!/usr/bin/env bash
# Runs the regression tests that docs/claims.md lists, each by its exact name. The figure is tests passed/listed.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_cargo
need python3 "install Python 3.9 or newer"
figure="$(python3 "$root/scripts/claims/repairs.py" "$root")"
outcome=short
[ "${figure%/*}" != "${figure#*/}" ] || [ "$figure" = 0/0 ] || outcome=ok
verdict "$figure" "$outcome"
