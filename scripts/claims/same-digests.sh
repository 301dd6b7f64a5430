#!/usr/bin/env bash
# Training and generation at commit 66a0a9d and at HEAD: digests of states, metrics, exported weights and tokens.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/../same_digests.sh" 66a0a9d HEAD
