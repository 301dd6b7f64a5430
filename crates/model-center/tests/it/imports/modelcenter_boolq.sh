#! /bin/bash
MASTER_ADDR=localhost
MASTER_PORT=12423
NNODES=1
NODE_RANK=0
GPUS_PER_NODE=1

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK"

BASE_PATH="ModelCenter"
DATASET="BoolQ"

OPTS=""
OPTS+=" --dataset ${DATASET}"
OPTS+=" --base-path ${BASE_PATH}"
OPTS+=" --model-config bert-large-cased"
OPTS+=" --batch-size 64"
OPTS+=" --train-iters 1400"
OPTS+=" --save-iters 2000"
OPTS+=" --max-encoder-length 512"
OPTS+=" --save results"
OPTS+=" --save-name finetune-bert-ckpt"
OPTS+=" --lr 0.00001"
OPTS+=" --inspect-iters 100"
OPTS+=" --warmup-iters 0"
OPTS+=" --lr-decay-style constant"
OPTS+=" --weight-decay 1e-2"
OPTS+=" --clip-grad 10.0"
OPTS+=" --loss-scale 128"

CMD="python3 -m torch.distributed.launch ${DISTRIBUTED_ARGS} ${BASE_PATH}/examples/bert/finetune_bert.py ${OPTS}"
echo ${CMD}
${CMD} 2>&1 | tee ${BASE_PATH}/logs/bert_superglue/finetune-bert-large-cased-${DATASET}.log
