#!/usr/bin/env bash
# Usage: NODES=2 NODE_RANK=0 MASTER_ADDR=node1 examples/launch/torchrun.sh RECIPE [OPTION...]
#
# Fine-tunes on several hosts with torchrun; start it on every host, with a NODE_RANK of its own. MASTER_ADDR is the
# host of node 0. torchrun listens there on MASTER_PORT (29500), the ranks on the port after it.
#
# torchrun reports the failure of any rank as status 1. Start the same command again after the statuses 6 (a rank was
# lost) and 75 (stopped with a checkpoint), which the ranks print; it resumes from the newest checkpoint.
set -euo pipefail

: "${NODES:?is not set: give the number of hosts}"
: "${NODE_RANK:?is not set: give the number of this host, from 0}"
: "${MASTER_ADDR:?is not set: give the address of host 0}"

exec torchrun --nnodes "$NODES" --node-rank "$NODE_RANK" --nproc-per-node "${GPUS:-gpu}" \
    --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" \
    --no-python "${BMTRAIN:-bmtrain}" finetune --recipe "$@"
