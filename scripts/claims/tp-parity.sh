#!/usr/bin/env bash
# Tensor-parallel ranks, with and without sequence sharding, against one rank, for every family. The figure is the
# largest differences: of losses, of gradients and the norm of the first step, and of later norms.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test it -- tensor_parallel::
