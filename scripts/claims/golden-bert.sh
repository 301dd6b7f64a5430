#!/usr/bin/env bash
# Tiny BERTs against goldens in 64-bit floats: hidden states, logits, losses, all gradients, 30 AdamW steps.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test golden_bert
