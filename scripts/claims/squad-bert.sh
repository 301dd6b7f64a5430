#!/usr/bin/env bash
# MiniLM learns to answer questions about passages of Moby Dick, in SQuAD's format, as well here as in transformers:
# the mean F1 of three seeds at most one point apart.
set -euo pipefail
# shellcheck source=scripts/claims/token_tasks.sh
source "$(dirname "${BASH_SOURCE[0]}")/token_tasks.sh"

compare qa question-answering json token_f1
