#!/usr/bin/env bash
# Simulated training steps against real ones on rank threads, with blocks that take a fixed time and links of a fixed
# latency and bandwidth: twenty schedules, stages, data-parallel ranks and links, each on stderr. The figure is the
# largest difference in percent of the measured time. Then what is simulated of published runs of 13 billion and 8.3
# billion parameters beside what was published, on stderr.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build simulate
for table in bmtrain_13b megatron_8b; do
    "$bin/simulate" run "$root/examples/simulate/$table.toml" >&2
done
tests_verdict --release --package bmtrain-programs --test it -- --ignored cluster::measured::
