"""One training step of a transformers model in PyTorch on the CPU: the peer our own step is measured against.

    python torch_step.py {bert-base|minilm|gpt2|llama-98m|t5-base} BATCH SEQUENCE [STEPS] [--target 32] [--json]
    [--compile] [--threads 2] [--dtype {f32|autocast|bf16}]

Prints the median seconds of a step and of its forward, backward and optimizer parts, tokens/s, GFLOP/s by the rule of 6
per parameter and token, and peak resident memory. Random weights and ids, dropout as in the configurations, gradients
clipped at 1.0, fused AdamW, nothing recomputed, two warm-up steps. Float32, or bfloat16 in one of two ways: under
autocast, with f32 weights, or with bfloat16 weights and optimizer state, without f32 copies of them. A token is one of
a sequence, or for T5 also one of its target. With --compile the model goes through torch.compile first. Run it in turn
with ours (A B A B) on a quiet machine and compare medians.
"""

import argparse
import json
import os
import resource
import statistics
import time

# Every model is built from its configuration; nothing is fetched.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

WARMUP = 2
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536, "num_attention_heads": 12}
LLAMA_98M = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
             "num_key_value_heads": 12, "vocab_size": 8192, "tie_word_embeddings": False, "use_cache": False}
T5_BASE = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0}


def build(name):
    """The model with random weights, and its vocabulary size."""
    if name == "gpt2":
        config = GPT2Config()
        return GPT2LMHeadModel(config), config.vocab_size
    if name == "llama-98m":
        config = LlamaConfig(**LLAMA_98M)
        return LlamaForCausalLM(config), config.vocab_size
    if name == "t5-base":
        config = T5Config(**T5_BASE)
        return T5ForConditionalGeneration(config), config.vocab_size
    config = BertConfig(**(MINILM if name == "minilm" else {}))
    return BertForSequenceClassification(config), config.vocab_size


def measure(name, batch, sequence, target, steps, compiled, dtype):
    """Medians over `steps` steps, as the record that is printed."""
    model, vocabulary = build(name)
    model.train()
    if dtype == "bf16":
        model = model.bfloat16()
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, vocabulary, (batch, sequence))  # [B, L]
    labels = {
        "gpt2": lambda: ids,
        "llama-98m": lambda: ids,
        "t5-base": lambda: torch.randint(0, vocabulary, (batch, target)),  # [B, T]
    }.get(name, lambda: torch.randint(0, 2, (batch,)))()
    mask = torch.ones(batch, sequence)
    run = torch.compile(model) if compiled else model

    times = []
    for _ in range(WARMUP + steps):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
            loss = run(input_ids=ids, attention_mask=mask, labels=labels).loss
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        times.append((end - start, forward - start, backward - forward, end - backward))
    step, forward, backward, update = (statistics.median(part) for part in zip(*times[WARMUP:]))
    tokens = batch * (sequence + (target if name == "t5-base" else 0))
    return {
        "model": name, "batch": batch, "sequence": sequence, "parameters": parameters,
        "torch": torch.__version__, "compiled": compiled, "dtype": dtype, "threads": torch.get_num_threads(),
        "step_s": step, "forward_s": forward, "backward_s": backward, "optimizer_s": update,
        "tokens_per_s": tokens / step,
        # In an encoder-decoder no token meets all parameters.
        "gflops_6n": None if name == "t5-base" else 6 * parameters * tokens / step / 1e9,
        # Linux counts the peak in KiB.
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("bert-base", "minilm", "gpt2", "llama-98m", "t5-base"))
    parser.add_argument("batch", type=int)
    parser.add_argument("sequence", type=int)
    parser.add_argument("steps", type=int, nargs="?", default=5)
    parser.add_argument("--target", type=int, default=32, help="tokens of a sequence's target, for T5")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--compile", action="store_true", help="measure the model after torch.compile")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("f32", "autocast", "bf16"), default="f32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    r = measure(arguments.model, arguments.batch, arguments.sequence, arguments.target, arguments.steps,
                arguments.compile, arguments.dtype)
    if arguments.json:
        print(json.dumps(r))
        return
    print(f"{r['model']} {r['batch']} {r['sequence']} params {r['parameters']} step {r['step_s']:.3f} "
          f"fwd {r['forward_s']:.3f} bwd {r['backward_s']:.3f} opt {r['optimizer_s']:.3f} "
          f"tok/s {r['tokens_per_s']:.1f} GF/s(6N) {r['gflops_6n'] or float('nan'):.1f} rssMB "
          f"{r['peak_rss_bytes'] >> 20}")


if __name__ == "__main__":
    main()
