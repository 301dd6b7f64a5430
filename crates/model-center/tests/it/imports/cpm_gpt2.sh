#!/bin/bash
GPUS_PER_NODE=8
MASTER_ADDR=localhost
MASTER_PORT=6000
NNODES=1
NODE_RANK=0

pp_size=2
mp_size=2
NLAYERS=24
NHIDDEN=1024
BATCHSIZE=4
GAS=16

options=" \
        --model-parallel-size ${mp_size} \
        --pipe-parallel-size ${pp_size} \
        --num-layers $NLAYERS \
        --hidden-size $NHIDDEN \
        --num-attention-heads 16 \
        --seq-length 1024 \
        --max-position-embeddings 1024 \
        --batch-size $BATCHSIZE \
        --gas $GAS \
        --train-iters 320000 \
        --lr-decay-iters 320000 \
        --save checkpoints/cpm \
        --load checkpoints/cpm \
        --data-path data/webtext_document \
        --vocab-file tokenizer/vocab.json \
        --data-impl mmap \
        --split 949,50,1 \
        --distributed-backend nccl \
        --lr 1.5e-4 \
        --lr-decay-style cosine \
        --min-lr 1.0e-5 \
        --weight-decay 1e-2 \
        --clip-grad 1.0 \
        --warmup 0.01 \
        --checkpoint-activations \
        --log-interval 1 \
        --save-interval 500 \
        --eval-interval 100 \
        --eval-iters 10 \
        --kv-hidden-size 64 \
        --ff-hidden-size 4096 \
        --fp16 \
        --deepspeed \
        --deepspeed_config ds_cpm_gpt2.json \
        --zero-stage 0 --zero-reduce-bucket-size 50000000 --zero-allgather-bucket-size 5000000000 \
        --partition-activations \
"
run="deepspeed --num_gpus 8 pretrain_gpt2.py $@ ${options}"
echo ${run}
eval ${run}
