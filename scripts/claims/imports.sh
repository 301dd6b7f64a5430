#!/usr/bin/env bash
# Commands and configurations of other systems become recipes with every flag and key accounted for, and checkpoints
# of their ranks become models bit for bit.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package model-center --test it -- import:: ranked::
