#!/usr/bin/env bash
# The software models of products of bf16 have the bits of a processor with AMX, AVX512_BF16 or FEAT_BF16 (BFMMLA), for
# each that it has, on 10,000,000 values: of ordinary size, of any exponent, near the least normal number and the
# largest, with infinities and NaN (whose payloads do not count), and of random bits. The figure is the number of values
# that are equal, and of those compared. On a processor with none there is nothing to compare with: exit status 75.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

needs_bf16 any
tests --release --package bmtrain-core --lib -- --ignored models_and_processor_agree_on_ten_million_values
counted_verdict
