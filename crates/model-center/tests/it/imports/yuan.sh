# 4.7 billion parameters on eight ranks of a host, all of them tensor-parallel.
deepspeed --num_gpus 8 pretrain_gpt2.py --model-parallel-size 8 --num-layers 40 --hidden-size 3072 \
  --num-attention-heads 24 --seq-length 2048 --max-position-embeddings 2048 --batch-size 1 --train-iters 30000 \
  --checkpoint-activations --checkpoint-num-layers 40 --use-npy-data-loader --train-data-path data/yuan \
  --tokenizer-type GPT2BPETokenizer --tokenizer-path data/vocab --split 1 --fp16 --lr 5e-5 --warmup 0.01 \
  --deepspeed-activation-checkpointing --partition-activations --checkpoint-in-cpu --deepspeed \
  --deepspeed_config ds_yuan.json
