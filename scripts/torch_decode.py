"""Greedy decoding of a model directory by transformers in PyTorch on the CPU: the reference for our decoding speed.

    python torch_decode.py DIRECTORY [--prompt TEXT] [--tokens 64] [--rounds 3] [--threads 2] [--json]

Float32, one text at a time, `generate` with its KV cache and no sampling. A round generates one token after the prompt,
and then TOKENS more; the difference of the two is the time of these tokens, so neither reading the prompt nor the
overhead of the call counts. Prints the median tokens/s, the first token's seconds, peak resident memory and, with
--json, the ids that were made, which decoding elsewhere has to agree with before its speed means anything. Run it in
turn with ours (A B A B) on a quiet machine and compare medians.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

PROMPT = "The sea was calm that morning, and the captain told us that"


def generate(model, ids, tokens):
    """The ids generated after the prompt, exactly `tokens` of them, and the seconds they took."""
    start = time.perf_counter()
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, use_cache=True,
                          min_new_tokens=tokens, max_new_tokens=tokens)
    seconds = time.perf_counter() - start
    return made[0, ids.shape[1]:].tolist(), seconds


def measure(directory, prompt, tokens, rounds):
    """Medians over the rounds, as the record that is printed."""
    transformers.utils.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    # Directories of models that chat ask for sampling.
    for option in ("temperature", "top_p", "top_k"):
        setattr(model.generation_config, option, None)
    model.generation_config.pad_token_id = model.generation_config.pad_token_id or 0
    ids = tokenizer(prompt, return_tensors="pt").input_ids  # [1, L]
    generate(model, ids, 2)
    firsts, rates, made = [], [], []
    for _ in range(rounds):
        _, first = generate(model, ids, 1)
        made, whole = generate(model, ids, tokens)
        firsts.append(first)
        rates.append((tokens - 1) / (whole - first))
    return {
        "torch": torch.__version__, "transformers": transformers.__version__, "threads": torch.get_num_threads(),
        "prompt_tokens": ids.shape[1], "tokens": tokens, "tokens_per_s": statistics.median(rates),
        "first_s": statistics.median(firsts), "ids": made,
        # Linux counts the peak in KiB.
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="a model directory with tokenizer.json")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    if arguments.tokens < 2 or arguments.rounds < 1:
        parser.error("--tokens must be 2 or more, --rounds 1 or more")
    if not os.path.isdir(arguments.directory):
        sys.exit(f"error: {arguments.directory}\n  reason: there is no such directory\n  fix: name a model directory")
    torch.set_num_threads(arguments.threads)
    r = measure(arguments.directory, arguments.prompt, arguments.tokens, arguments.rounds)
    if arguments.json:
        print(json.dumps(r))
        return
    print(f"{r['tokens']} tokens after {r['prompt_tokens']}: {r['tokens_per_s']:.1f} tokens/s, first "
          f"{r['first_s']:.3f} s, "
          f"peak {r['peak_rss_bytes'] >> 20} MB")


if __name__ == "__main__":
    main()
