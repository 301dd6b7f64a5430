"""Our reading of a prompt in bf16 against our own in f32 and llama.cpp's, in turn, on this machine.

    python speed_prompt_bf16.py DECODE_BENCH MODELS TEXT [--pairs 5]

MODELS has one model as directories `f32` and `bf16`, and as `bf16.gguf` and `q8_0.gguf`. The prompt is the first 512
tokens of the file TEXT; 64 are generated. Every round runs each side in a process of its own with two threads, the last
one first in every second round: ours in bf16, in f32, in bf16 without the processor's products of bf16, and with Q8_0
as it is stored beside activations in bf16; llama.cpp, compiled for all that this processor has, with both files. A
figure is the median over the rounds of a ratio of tokens per second.

The last line on stdout is `speed-prompt-bf16 FIGURES ok|short|noisy`, exit status 0, 1 or 75: the instruction set, the
prompt in bf16 over f32's, over llama.cpp's in bf16 and in Q8_0, and generation in bf16 over that without such products.
It is noisy when one of llama.cpp's own values spreads by more than 10 %. On stderr: every round, and all medians.
"""

import argparse
import os
import statistics
from pathlib import Path

import instruction_sets
from speed import MAX_SPREAD, options, say, spread, verdict
from speed_llama_cpp import KEYS, ROUNDS, TOKENS, llama_decode, ours

# Our runs: the model, the dtype, more arguments, and variables of the environment. `before` is with the set of the same
# vectors, and without products of bf16.
OURS = {
    "bf16": ("bf16", "bf16", (), {}),
    "f32": ("f32", "f32", (), {}),
    "before": ("bf16", "bf16", (), {"BMTRAIN_CPU": "avx512"}),
    "q8_0": ("q8_0.gguf", "bf16", ("--weights", "as-stored"), {}),
}
# Figures: a value of one side over the same of another, and the least.
FIGURES = {
    "f32": ("prompt", "bf16", "f32", 3.0),
    "llama.cpp:bf16": ("prompt", "bf16", "llama.cpp bf16", 1.2),
    "llama.cpp:q8_0": ("prompt", "q8_0", "llama.cpp q8_0", 1.2),
    "generation": ("generation", "bf16", "before", 0.95),
}


def our_side(bench, models, text, name, tokens=TOKENS, rounds=ROUNDS):
    model, dtype, more, variables = OURS[name]
    return ours(bench, models / model, dtype, text, tokens, rounds, more, variables)


def measure(arguments, text):
    """The records of all runs, by side."""
    bench, models = arguments.bench, arguments.models
    prompt = our_side(bench, models, text, "f32", 2, 1)["prompt_ids"]
    sides = {name: lambda name=name: our_side(bench, models, text, name) for name in OURS}
    for file in ("bf16", "q8_0"):
        sides[f"llama.cpp {file}"] = lambda file=file: llama_decode(models / f"{file}.gguf", prompt)
    records = {side: [] for side in sides}
    for pair in range(arguments.pairs):
        for side in list(sides) if pair % 2 == 0 else list(sides)[::-1]:
            records[side].append(sides[side]())
        say(f"round {pair + 1}: " + ", ".join(f"{side} {of[-1][KEYS['prompt']]:.0f}" for side, of in records.items()))
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our decode_bench program")
    parser.add_argument("models", type=Path, help="a directory with the model in all forms")
    parser.add_argument("text", type=Path, help="a text of at least 512 tokens")
    arguments = options(parser, pairs=5)

    records = measure(arguments, arguments.text.read_text())
    say(f"llama.cpp: {records['llama.cpp bf16'][0]['system_info']}")
    for side, of in records.items():
        prompt, rate, peak = (statistics.median(r[key] for r in of) for key in (*KEYS.values(), "peak_rss_bytes"))
        say(f"{side}: prompt {prompt:.0f} tokens/s, generation {rate:.1f} tokens/s, peak {peak / 2**20:.0f} MiB")
    for mine, theirs in (("bf16", "llama.cpp bf16"), ("q8_0", "llama.cpp q8_0"), ("bf16", "f32")):
        pairs = list(zip(records[mine][-1]["ids"], records[theirs][-1]["ids"]))
        say(f"{mine} and {theirs}: {sum(a == b for a, b in pairs)} of {len(pairs)} generated tokens agree")
    ratios = {
        name: statistics.median(a[KEYS[key]] / b[KEYS[key]] for a, b in zip(records[mine], records[other]))
        for name, (key, mine, other, _) in FIGURES.items()
    }
    noise = max(spread([record[key] for record in of]) for side, of in records.items() if side.startswith("llama.cpp")
                for key in KEYS.values())
    say(f"llama.cpp's own largest spread: {100 * noise:.1f} %; load average after: {os.getloadavg()[0]:.2f}")
    is_ok = all(ratios[name] >= least for name, (*_, least) in FIGURES.items())
    figures = ",".join(f"{name}={ratio:.2f}x" for name, ratio in ratios.items())
    used = instruction_sets.used(records["bf16"][0])
    verdict(f"speed-prompt-bf16 {used},{figures}", "noisy" if noise > MAX_SPREAD else "ok" if is_ok else "short")


if __name__ == "__main__":
    main()
