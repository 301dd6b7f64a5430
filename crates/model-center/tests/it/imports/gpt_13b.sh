#! /bin/bash
# A decoder of 13 billion parameters by Megatron-LM's second version: 224 hosts, tensor and pipeline parallel.
GPUS_PER_NODE=8
NNODES=${WORLD:-224}
OUT=${OUT:-output/gpt_13b}

MODEL_ARGS="
    --num-layers 40 --hidden-size 5120 --num-attention-heads 40
    --seq-length 2048 --max-position-embeddings 2048 --init-method-std 0.002
"
MODEL_ARGS+=" --attention-dropout 0 --hidden-dropout 0.0"
DATA_ARGS="--data-path 0.6 data/books_text_document 0.4 data/news_text_document --split 100,0,0"
DATA_ARGS+=" --vocab-file data/vocab.json"

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 $MODEL_ARGS $DATA_ARGS \
    --merge-file data/merges.txt --data-impl mmap --distributed-backend nccl \
    --micro-batch-size 4 --global-batch-size 2688 --rampup-batch-size 448 448 488280 --train-samples 146484375 \
    --lr-decay-samples 131835938 --lr-warmup-samples 488280 --lr 1.0e-4 --min-lr 1.0e-5 --lr-decay-style cosine \
    --adam-beta1 0.9 --adam-beta2 0.95 --weight-decay 0.1 --clip-grad 1.0 --fp16 --initial-loss-scale 65536 \
    --log-interval 10 --eval-iters 50 --eval-interval 1000 --save-interval 2000 --save $OUT --load $OUT \
    --tensorboard-dir $OUT/tensorboard --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
