#!/usr/bin/env bash
# The quickstart's first steps on two processes, with elastic gradient sums and ZeRO-3: ranks of `mpirun` that exchange
# data by MPI, and ranks with torchrun's variables that share memory. Weights, losses and predictions are those of one
# rank, byte for byte. The figure is files that agree / all.
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
    # Its agent says that it is torchrun, and listens on the port itself, so that the ranks meet one higher.
    launcher=(env TORCHELASTIC_RUN_ID=claim TORCHELASTIC_USE_AGENT_STORE=True GROUP_WORLD_SIZE=1
        "RANK=$rank" WORLD_SIZE=2 "LOCAL_RANK=$rank" LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port")
    train torchrun &
    processes+=($!)
done
for process in "${processes[@]}"; do wait "$process"; done

same=0
all=0
for other in mpirun torchrun; do
    while read -r word name; do
        note "one rank and two by $other: $word $name"
        all=$((all + 1))
        [ "$word" != same ] || same=$((same + 1))
    done < <(python3 "$root/scripts/claims/compare_runs.py" "$scratch/one" "$scratch/$other")
done
if [ "$same" -eq "$all" ] && [ "$all" -ge 16 ]; then verdict "$same/$all" ok; else verdict "$same/$all" short; fi
