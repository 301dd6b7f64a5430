python -m torch.distributed.launch --nproc_per_node 8 -m src.train --model_name google/flan-t5-small \
    --model_class AutoModelForSeq2SeqLM --training_inference_type prompt_tuning --prompt_tuning_init TEXT \
    --prompt_tuning_init_text "Classify the sentence:" --num_virtual_tokens 20 --data_class SST2Dataset \
    --data_path data/sst2 --max_input_tokens 128 --max_output_tokens 8 --num_training_steps 1000 \
    --eval_and_save_interval 250 --batch_size_per_gpu 16 --no_eval --stage 0 --learning_rate 3e-1 \
    --lr_schedule linear --dtype float32 --save_path prompts
