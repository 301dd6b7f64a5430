"""Our reading of a prompt and greedy decoding against llama.cpp's, in turn, on this machine.

    python speed_llama_cpp.py DECODE_BENCH MODELS TEXT --isa avx2|avx512 [--pairs 5]

MODELS has one model four times: `f32.gguf` and `bf16.gguf`, and the same weights as directories `f32` and `bf16`. The
prompt is the first 512 tokens of the file TEXT; 64 are generated. Runs llama_decode.py and our decode_bench
alternately, each in a process of its own, two threads each; which of the two goes first changes with every pair.
llama.cpp is compiled for the instruction set, ours is held to it. A figure is the median over the pairs of ours /
theirs in tokens per second; there are four, of the prompt and of the generation for each dtype.

The last line on stdout is `speed-llama-cpp FIGURES ok|short|noisy`, exit status 0, 1 or 75. It is noisy when one of
llama.cpp's own four values spreads by more than 10 %: largest less smallest, over their median. On stderr: every pair,
the medians of both sides with peak resident memory, and the tokens that agree: in f32 all should, in bf16 sums are
rounded in different places.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

import instruction_sets
from speed import MAX_SPREAD, THREADS, options, run, say, spread, verdict

LLAMA_DECODE = Path(__file__).resolve().parent / "llama_decode.py"
PROMPT, TOKENS, ROUNDS = 512, 64, 3
DTYPES = ("f32", "bf16")
KEYS = {"prompt": "prompt_tokens_per_s", "generation": "tokens_per_s"}
LEAST = 0.9


def llama_decode(path, prompt):
    return run([sys.executable, LLAMA_DECODE, path, "--prompt-ids", ",".join(map(str, prompt)), "--tokens", TOKENS,
                "--rounds", ROUNDS, "--threads", THREADS, "--json"])


def ours(bench, model, dtype, text, tokens=TOKENS, rounds=ROUNDS, more=(), variables=None):
    return run([bench, model, "--dtype", dtype, "--prompt", text, "--prompt-tokens", PROMPT, "--tokens", tokens,
                "--rounds", rounds, "--threads", THREADS, "--json", *more], variables)


def measure(arguments, text):
    """The records of all runs, by dtype: ours and llama.cpp's."""
    records = {dtype: ([], []) for dtype in DTYPES}
    # Also brings the files into the page cache, as far as one side can.
    prompt = [ours(arguments.bench, arguments.models / dtype, dtype, text, 2, 1) for dtype in DTYPES][0]["prompt_ids"]
    for pair in range(arguments.pairs):
        for dtype, (mine, theirs) in records.items():
            sides = [lambda: theirs.append(llama_decode(arguments.models / f"{dtype}.gguf", prompt)),
                     lambda: mine.append(ours(arguments.bench, arguments.models / dtype, dtype, text))]
            for side in sides if pair % 2 == 0 else sides[::-1]:
                side()
            say(f"pair {pair + 1}, {dtype}: " + "; ".join(
                f"{name} ours {mine[-1][key]:.1f} tokens/s, llama.cpp {theirs[-1][key]:.1f}, ratio "
                f"{mine[-1][key] / theirs[-1][key]:.3f}" for name, key in KEYS.items()))
    return records


def describe(dtype, mine, theirs):
    for name, side in (("ours", mine), (f"llama.cpp of llama-cpp-python {theirs[0]['llama_cpp_python']}", theirs)):
        prompt, rate, peak = (statistics.median(r[key] for r in side) for key in (*KEYS.values(), "peak_rss_bytes"))
        say(f"{dtype}, {name}: prompt {prompt:.1f} tokens/s, generation {rate:.1f} tokens/s, peak "
            f"{peak / 2**20:.0f} MiB (medians)")
    same = sum(a == b for a, b in zip(mine[-1]["ids"], theirs[-1]["ids"]))
    say(f"{dtype}: {same} of {len(mine[-1]['ids'])} generated tokens agree"
        + (", and in f32 all should" if dtype == "f32" and same < len(mine[-1]["ids"]) else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our decode_bench program")
    parser.add_argument("models", type=Path, help="a directory with both forms of the model in both dtypes")
    parser.add_argument("text", type=Path, help="a text of at least 512 tokens")
    arguments = options(parser, pairs=5)
    if arguments.isa is None:
        parser.error("--isa is needed: llama.cpp is compiled for one")

    records = measure(arguments, arguments.text.read_text())
    say(f"llama.cpp: {records['f32'][1][0]['system_info']}")
    ratios, noise = {}, 0.0
    for dtype, (mine, theirs) in records.items():
        describe(dtype, mine, theirs)
        for name, key in KEYS.items():
            ratios[f"{dtype}:{name}"] = statistics.median(a[key] / b[key] for a, b in zip(mine, theirs))
            noise = max(noise, spread([record[key] for record in theirs]))
    say(f"llama.cpp's own largest spread: {100 * noise:.1f} %; load average after: {os.getloadavg()[0]:.2f}")
    outcome = "noisy" if noise > MAX_SPREAD else "ok" if min(ratios.values()) >= LEAST else "short"
    figures = ",".join(f"{name}={ratio:.3f}x" for name, ratio in ratios.items())
    verdict(f"speed-llama-cpp {figures},{instruction_sets.used(records['f32'][0][0])}", outcome)


if __name__ == "__main__":
    main()
