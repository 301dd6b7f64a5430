#!/usr/bin/env bash
# An all-reduce of 64 MiB of f32 between two ranks of one machine, threads and processes: OpenMPI's time over ours,
# median of seven pairs that were measured in turn; at least 1.6 for both. The figure is the two ratios.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

mpirun_here
need python3 "install Python 3"
build bench
scratch
mpicc -O2 -o "$scratch/mpi_allreduce" "$root/scripts/claims/mpi_allreduce.c" >&2
result="$(python3 "$root/scripts/claims/allreduce.py" "$bin/bench" \
    "${mpirun[@]}" -n 2 "$scratch/mpi_allreduce")"
read -r figure outcome <<<"$result"
verdict "$figure" "$outcome"
