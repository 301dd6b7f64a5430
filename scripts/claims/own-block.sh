#!/usr/bin/env bash
# A block of ten lines in a crate that depends on bmtrain-dist alone trains under ZeRO-3 on two ranks, where every bit
# equals one rank's, and on two tensor-parallel ranks of each of two stages. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_cargo
# Built and tested on the package, and what the dependencies of the workspace are.
built_and_checked() {
    scripts/package_check.sh own_block &&
        cargo test --locked --package bmtrain-programs --test it -- recipes::own_block
}
tests_of built_and_checked
counted_verdict
