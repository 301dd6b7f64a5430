"""Greedy decoding of a GGUF file by llama.cpp on the CPU: a reference for our speed of reading prompts and generating.

    python llama_decode.py FILE --prompt-ids 1,2,3 [--tokens 64] [--rounds 3] [--threads 2] [--json]

One sequence at a time, through llama.cpp's own functions, so that Python adds microseconds to a token. A round reads
the prompt in one batch and chooses a token, which is the time of the prompt, and generates TOKENS - 1 more, whose time
is taken by itself. The options are llama.cpp's defaults but for the threads and the size of a batch: the KV cache is in
f16, with which it generates faster than with one in f32. Prints the medians over the rounds, peak resident memory and,
with --json, the ids that were made, the version of the package and the instruction sets that llama.cpp was compiled
for. Runs in the environment of scripts/llama_env.sh; run it in turn with ours (A B A B) on a quiet machine and compare
medians.
"""

import argparse
import json
import logging
import os
import resource
import statistics
import sys
import time

import llama_cpp
import numpy


class Decoder:
    """A model and a context with room for a prompt and its continuation."""

    def __init__(self, path, threads, prompt, tokens):
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(path), model_options)
        if not self.model:
            sys.exit(f"error: {path}\n  reason: llama.cpp cannot load it\n  fix: name a GGUF file of a whole model")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = prompt + tokens
        options.n_batch = options.n_ubatch = prompt
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            sys.exit(f"error: {path}\n  reason: llama.cpp makes no context for {prompt} + {tokens} tokens\n"
                     "  fix: see the lines above")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def extend(self, ids):
        """The token of the largest logit after these, which are added to the KV cache."""
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        # Without marks, the logits of the last token alone are computed.
        status = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(tokens, len(ids)))
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status} for {len(ids)} tokens")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(numpy.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def generate(self, prompt, tokens):
        """The ids generated after the prompt, seconds of the first of them, and of the others."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        start = time.perf_counter()
        made = [self.extend(prompt)]
        first = time.perf_counter()
        while len(made) < tokens:
            made.append(self.extend(made[-1:]))
        return made, first - start, time.perf_counter() - first


def measure(path, prompt, tokens, rounds, threads):
    """Medians over the rounds, as the record that is printed."""
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    llama_cpp.llama_backend_init()
    decoder = Decoder(path, threads, len(prompt), tokens)
    decoder.generate(prompt, 2)
    firsts, rates, made = [], [], []
    for _ in range(rounds):
        made, first, rest = decoder.generate(prompt, tokens)
        firsts.append(first)
        rates.append((tokens - 1) / rest)
    first = statistics.median(firsts)
    return {
        "llama_cpp_python": llama_cpp.__version__, "system_info": llama_cpp.llama_print_system_info().decode(),
        "threads": threads, "prompt_tokens": len(prompt), "tokens": tokens,
        "prompt_tokens_per_s": len(prompt) / first, "tokens_per_s": statistics.median(rates), "first_s": first,
        "ids": made,
        # Linux counts the peak in KiB.
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a GGUF file of a model")
    parser.add_argument("--prompt-ids", required=True, help="ids of the prompt, with commas between them")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    if arguments.tokens < 2 or arguments.rounds < 1:
        parser.error("--tokens must be 2 or more, --rounds 1 or more")
    prompt = [int(number) for number in arguments.prompt_ids.split(",")]
    r = measure(arguments.file, prompt, arguments.tokens, arguments.rounds, arguments.threads)
    if arguments.json:
        print(json.dumps(r))
        return
    print(f"{r['tokens']} tokens after {r['prompt_tokens']}: {r['tokens_per_s']:.1f} tokens/s, prompt "
          f"{r['prompt_tokens_per_s']:.1f} tokens/s, peak {r['peak_rss_bytes'] >> 20} MB")


if __name__ == "__main__":
    main()
