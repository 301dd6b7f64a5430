#!/usr/bin/env bash
# Emulated: ranks in network namespaces as on two hosts. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests --package bmtrain-programs --test it -- hosts::
if [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ] && [ "$skipped" -eq 0 ]; then verdict "emulated:$figure" ok; fi
verdict "emulated:$figure" short
