#!/usr/bin/env bash
# The program `forward` over two tensor-parallel ranks against one, for every family. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-programs --test it -- tensor::a_forward_pass
