#!/usr/bin/env bash
# The quickstart's first steps on two processes, with elastic gradient sums and ZeRO-3: ranks of `mpirun` that
# communicate by MPI, and ranks with torchrun's variables that share memory. Weights, losses and predictions equal one
# rank's, byte for byte. The figure is files that agree / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

mpirun_here
quickstart_data
# shellcheck disable=SC2034
features=mpi
build finetune
scratch

# train NAME ARGUMENTS...
train() {
    local name="$1"
    shift
    note "run $name"
    quickstart_train "$scratch/$name" "$@" --set data.eval_limit=64 \
        --set train.steps=12 --set train.micro_batch_size=16 --set log.every=1 --set "eval.every=6 steps" \
        --set train.gradient_sum=elastic --set parallel.zero=3
}
train one
launcher=("${mpirun[@]}" -n 2)
train mpirun --comm mpi
port=$((20000 + $$ % 20000))
processes=()
for rank in 0 1; do
    # torchrun's agent listens on the port itself, so the ranks use the next one.
    launcher=(env TORCHELASTIC_RUN_ID=claim TORCHELASTIC_USE_AGENT_STORE=True GROUP_WORLD_SIZE=1
        "RANK=$rank" WORLD_SIZE=2 "LOCAL_RANK=$rank" LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port")
    train torchrun &
    processes+=($!)
done
for process in "${processes[@]}"; do wait "$process"; done

same=0
all=0
for other in mpirun torchrun; do
    while read -r outcome name; do
        note "one rank and two by $other: $outcome $name"
        all=$((all + 1))
        [ "$outcome" != same ] || same=$((same + 1))
    done < <(python3 "$root/scripts/claims/compare_runs.py" "$scratch/one" "$scratch/$other")
done
if [ "$same" -eq "$all" ] && [ "$all" -ge 16 ]; then verdict "$same/$all" ok; else verdict "$same/$all" short; fi
