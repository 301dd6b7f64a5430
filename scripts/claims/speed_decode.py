"""Our greedy decoding against transformers' in PyTorch, in turn, on this machine.

    python speed_decode.py DECODE_BENCH DIRECTORY [--pairs 7] [--isa avx2|avx512]

Runs scripts/torch_decode.py and our decode_bench alternately on the same model directory, each in a process of its own,
two threads each, one text, 32-bit floats; which of the two goes first changes with every pair. Both must generate the
same tokens. The figure is the median over the pairs of ours / theirs in tokens per second, reading the prompt left out.

The last line on stdout is `speed-decode FIGURE ok|short|noisy`, exit status 0, 1 or 75. It is noisy when PyTorch's own
values spread by more than 10 %: largest less smallest, over their median. On stderr: every pair, and the medians of
both sides.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

import instruction_sets
from speed import MAX_SPREAD, THREADS, options, run, say, spread, verdict

TORCH_DECODE = Path(__file__).resolve().parents[1] / "torch_decode.py"
TOKENS, ROUNDS = 64, 3
LEAST = 1.5


def torch_decode(directory):
    return run([sys.executable, TORCH_DECODE, directory, "--tokens", TOKENS, "--rounds", ROUNDS, "--threads", THREADS,
                "--json"])


def ours(bench, directory):
    return run([bench, directory, "--tokens", TOKENS, "--rounds", ROUNDS, "--threads", THREADS, "--json"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our decode_bench program")
    parser.add_argument("directory", type=Path, help="a model directory")
    arguments = options(parser)

    mine, theirs, ratios, same = [], [], [], True
    for pair in range(arguments.pairs):
        sides = [lambda: theirs.append(torch_decode(arguments.directory)),
                 lambda: mine.append(ours(arguments.bench, arguments.directory))]
        for side in sides if pair % 2 == 0 else sides[::-1]:
            side()
        ratios.append(mine[-1]["tokens_per_s"] / theirs[-1]["tokens_per_s"])
        same = same and mine[-1]["ids"] == theirs[-1]["ids"]
        say(f"pair {pair + 1}: ours {mine[-1]['tokens_per_s']:.1f} tokens/s, PyTorch {theirs[-1]['tokens_per_s']:.1f}; "
            f"ratio {ratios[-1]:.3f}")
    for name, records in (("ours", mine), (f"PyTorch {theirs[0]['torch']}", theirs)):
        rate, peak = (statistics.median(r[key] for r in records) for key in ("tokens_per_s", "peak_rss_bytes"))
        say(f"{name}: {rate:.1f} tokens/s, peak {peak / 2**30:.2f} GiB (medians)")
    if not same:
        say("the two sides generated different tokens")
    noise = spread([record["tokens_per_s"] for record in theirs])
    say(f"PyTorch's own spread: {100 * noise:.1f} %; load average after: {os.getloadavg()[0]:.2f}")
    figure = statistics.median(ratios)
    # Different tokens are wrong on any machine.
    outcome = "short" if not same else "noisy" if noise > MAX_SPREAD else "ok" if figure >= LEAST else "short"
    verdict(f"speed-decode {figure:.3f}x,{instruction_sets.used(mine[0])}", outcome)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as fault:
        sys.exit(f"error: {fault}")
