#!/bin/bash
# A BERT of 345 million parameters by the list of arguments of 2019, on eight ranks of a host.
GPUS=8
CHECKPOINTS=checkpoints/bert_345m
DISTRIBUTED="--nproc_per_node $GPUS --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000"

python -m torch.distributed.launch $DISTRIBUTED pretrain_bert.py \
       --num-layers 24 \
       --hidden-size 1024 \
       --num-attention-heads 16 \
       --batch-size 4 \
       --seq-length 512 \
       --max-preds-per-seq 80 \
       --max-position-embeddings 512 \
       --train-iters 1000000 \
       --save $CHECKPOINTS \
       --load $CHECKPOINTS \
       --resume-dataloader \
       --train-data wikipedia.json \
       --lazy-loader \
       --tokenizer-type BertWordPieceTokenizer \
       --tokenizer-model-type bert-large-uncased \
       --presplit-sentences \
       --cache-dir cache \
       --split 949,50,1 \
       --distributed-backend nccl \
       --lr 0.0001 \
       --lr-decay-style linear \
       --lr-decay-iters 990000 \
       --weight-decay 1e-2 \
       --clip-grad 1.0 \
       --warmup .01 \
       --fp16 \
       --fp32-layernorm \
       --fp32-embedding
