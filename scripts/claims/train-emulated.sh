#!/usr/bin/env bash
# Tiny models train on an emulated device as on the CPU: through all kernels, launches and the collectives of an
# emulated NCCL. None of it runs on a device, and none of it measures speed. The figure is tests passed/all and what
# they took.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need g++ "install a C++ compiler, which the emulator needs, on Debian: apt-get install g++"
emulated_verdict --package bmtrain-bench --test train_emulated
