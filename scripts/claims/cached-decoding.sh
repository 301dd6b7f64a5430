#!/usr/bin/env bash
# Decoding token by token with a KV cache against forward passes over whole sequences: a test over the golden models of
# all families. The figure is their number and the largest difference of a logit.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test it -- cached_decoding::
