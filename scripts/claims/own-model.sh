#!/usr/bin/env bash
# A family of models in a crate of its own is trained by a finetune and run by a forward that this crate builds, on one
# rank and on two under ZeRO-3. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package bmtrain-examples --test it -- recipes::own_model
