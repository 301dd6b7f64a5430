# A Llama-like decoder with Megatron-LM's core: grouped queries, bf16, sharded optimizer, selective recomputation.
torchrun --nproc-per-node=8 pretrain_gpt.py --use-mcore-models --num-layers 24 --hidden-size 2048 \
  --num-attention-heads 16 --group-query-attention --num-query-groups 4 --ffn-hidden-size 5632 --kv-channels 128 \
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --rotary-base 10000 \
  --normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 --bf16 \
  --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \
  --overlap-param-gather --use-flash-attn --micro-batch-size 2 --global-batch-size 128 --train-iters 50000 \
  --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --lr-warmup-iters 2000 --weight-decay 0.1 --adam-beta2 0.95 \
  --data-path data/tokens_document --split 99,1,0 --tokenizer-type SentencePieceTokenizer \
  --tokenizer-model models/tokenizer.model --save runs/llama --save-interval 1000 --eval-interval 500 --eval-iters 10 \
  --log-interval 10 --log-throughput --recompute-activations --transformer-impl transformer_engine --num-workers 4
