#!/bin/bash
GPUS_PER_NODE=8
NNODES=1

pp_size=2
mp_size=1
NLAYERS=12
NHIDDEN=128
BATCHSIZE=4
GAS=8

options=" \
        --model-parallel-size ${mp_size} \
        --pipe-parallel-size ${pp_size} \
        --num-layers $NLAYERS \
        --hidden-size $NHIDDEN \
        --kv-hidden-size 32 \
        --ff-hidden-size 256 \
        --num-attention-heads 8 \
        --enc-seq-length 1024 \
        --dec-seq-length 384 \
        --max-position-embeddings 1024 \
        --hidden-bias \
        --batch-size $BATCHSIZE \
        --gas $GAS \
        --train-iters 320000 \
        --lr-decay-iters 320000 \
        --save checkpoints/cpm_t5 \
        --load checkpoints/cpm_t5 \
        --data-path data/chinese \
        --vocab-file tokenizer \
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
        --log-interval 100 \
        --save-interval 5000 \
        --eval-interval 1000 \
        --eval-iters 100 \
        --fp16 \
        --deepspeed \
        --deepspeed_config ds_config_t5.json \
"
run="deepspeed --num_gpus 8 pretrain_t5.py $@ ${options}"
echo ${run}
eval ${run}
