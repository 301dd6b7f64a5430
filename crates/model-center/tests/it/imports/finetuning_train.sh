#!/bin/bash
# Fine-tune a small decoder on two data sets, on all GPUs of each node.
MODEL=models/bloom
torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK --nproc_per_node=4 --rdzv_id=finetuning \
    --rdzv_endpoint="${MASTER_ADDR}:${MASTER_PORT}" --rdzv_backend=c10d \
    -m src.train \
    --model_name $MODEL \
    --model_class AutoModelForCausalLM \
    --dtype bfloat16 \
    --data_path data/reviews data/facts \
    --data_class JSONLinesDataset JSONLinesDataset \
    --data_sampling_proportion 3 1 \
    --data_config "{}" "{}" \
    --input_format "Review: __input__" "Question: __input__" \
    --output_format " Class: __output__" " Answer: __output__" \
    --max_input_tokens 200 300 \
    --max_output_tokens 10 60 \
    --training_inference_type full_finetuning \
    --num_training_steps 2000 \
    --gradient_accumulation_steps 2 \
    --eval_and_save_interval 500 \
    --batch_size_per_gpu 4 \
    --stage 3 --overlap_comm --contiguous_gradients --cpu_offload \
    --learning_rate 2e-5 --weight_decay 0.05 --warmup_steps 100 --lr_schedule cosine \
    --logdir logs --aim_repo aim --experiment_name reviews \
    --save_path checkpoints/reviews
