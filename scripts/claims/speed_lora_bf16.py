"""LoRA and QLoRA on a model of Qwen 3's size with weights in bf16, here and in PEFT, in turn, on this machine.

    python speed_lora_bf16.py FINETUNE SCRATCH VOCABULARY TEXT [--pairs 3]

The model has the shape of Qwen3-0.6B and random weights, and the vocabulary of GPT-2 in a directory. Four programs run
one after the other, each in a process of its own on two threads, 2 sequences of 512 tokens a step, AdamW, updates of
rank 16 for all linear layers: PEFT with transformers, weights in bf16; `finetune` with the same; PEFT beside the model
in NF4 by bitsandbytes; `finetune` beside NF4. Nothing is recomputed. Memory is the peak of the process by the kernel's
count, everything included; tokens/s are the median step's, after two.

The last line on stdout is `speed-lora-bf16 lora=Sx/M,nf4=Sx/M ok|short|noisy`: medians over the rounds of our tokens/s
and memory over the peer's; noisy when PEFT's own tokens/s spread by more than 10 %. Called by speed-lora-bf16.sh.
"""

import argparse
import statistics
from pathlib import Path

from adapter_memory import STEPS, WARMUP, run_ours, run_peer
from adapters import write_passages
from speed import MAX_SPREAD, say, spread, verdict

BATCH = 2
# Least tokens/s and most memory over the peer's.
BOUNDS = {"lora": (1.8, 0.5), "nf4": (2.0, 0.6)}


def write_model(directory, vocabulary):
    """Random weights of the shape, and a tokenizer whose ids the vocabulary of the model has."""
    import torch
    from transformers import GPT2TokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = Qwen3Config(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                         num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=4096,
                         tie_word_embeddings=True, bos_token_id=50256, eos_token_id=50256, dtype="bfloat16")
    Qwen3ForCausalLM(config).save_pretrained(directory)
    torch.set_default_dtype(torch.float32)
    GPT2TokenizerFast(str(vocabulary / "vocab.json"), str(vocabulary / "merges.txt")).save_pretrained(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("finetune", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    model, rows = arguments.scratch / "model", arguments.scratch / "train.jsonl"
    write_model(model, arguments.vocabulary)
    write_passages(arguments.text, rows, BATCH * (WARMUP + STEPS), 4000)
    options = ["--dtype", "bfloat16", "--batch", str(BATCH)]
    sides = {
        "lora": (options, {}),
        "nf4": ([*options, "--nf4"], {"adapter.quantize": "nf4"}),
    }
    figures, is_ok, noise = [], True, 0.0
    for name, (theirs, ours) in sides.items():
        rounds = []
        for number in range(arguments.pairs):
            pair = (run_peer(model, rows, *theirs),
                    run_ours(arguments.finetune, model, rows, name,
                             {"model.dtype": "bf16", "train.recompute": "none"} | ours, BATCH))
            rounds.append(pair)
            say(f"{name}, round {number + 1}: " + "; ".join(
                f"{side} {peak / 2**30:.2f} GiB, {speed:.0f} tokens/s" for side, (peak, speed) in
                zip(("PEFT", "ours"), pair)))
        speed = statistics.median(ours[1] / theirs[1] for theirs, ours in rounds)
        memory = statistics.median(ours[0] / theirs[0] for theirs, ours in rounds)
        noise = max(noise, spread([theirs[1] for theirs, _ in rounds]))
        is_ok &= speed >= BOUNDS[name][0] and memory <= BOUNDS[name][1]
        figures.append(f"{name}={speed:.2f}x/{memory:.2f}")
    verdict(f"speed-lora-bf16 {','.join(figures)}", "noisy" if noise > MAX_SPREAD else "ok" if is_ok else "short")


if __name__ == "__main__":
    main()
