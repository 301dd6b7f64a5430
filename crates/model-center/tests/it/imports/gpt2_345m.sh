# A GPT-2 of the same size, with two tensor-parallel ranks, from files of the npy loader.
RANK=0
python pretrain_gpt2.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --batch-size 8 \
    --seq-length 1024 --max-position-embeddings 1024 --train-iters 320000 --save "checkpoints/gpt2 345m" \
    --use-npy-data-loader --train-data-path data/webtext --input-data-sizes-file sizes.txt \
    --val-data-path '' --test-data-path '' \
    --tokenizer-type GPT2BPETokenizer --model-parallel-size 2 --lr 0.00015 --lr-decay-style cosine \
    --weight-decay 1e-2 --clip-grad 1.0 --warmup .01 --checkpoint-activations --checkpoint-num-layers 2 --fp16 \
    --loss-scale-window 500 --hysteresis 1 --min-scale 1 --seed 42 --eval-interval 500 --eval-iters 20 \
    2>&1 | tee train.log
