#!/usr/bin/env bash
# Training by recipe in three dimensions, tensor x pipeline x data, against one rank; and over pipeline stages and
# data-parallel ranks in the elastic order, bit for bit. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-programs --test it -- pipeline::
