"""Our training step of BERT-base on two ranks, tensor-parallel and as a pipeline, against that on one rank.

    python speed_tp.py STEP_BENCH [--pairs 5] [--isa avx2|avx512]

Runs one rank with two threads and two ranks with one thread each in turn, every one in a process of its own; which
goes first changes with every pair. A figure is the median over the pairs of two ranks / one rank in tokens per second:
tensor-parallel without and with sequence sharding, on 4 sequences of 128 tokens, the first at least 0.85; and two
pipeline stages under ZB-1P, of 64 sequences in 8 micro-batches on either side, at least 0.80.

The last line on stdout is `speed-tp FIGURES ok|short|noisy`, exit status 0, 1 or 75. It is noisy when the values of one
rank spread by more than 10 %: largest less smallest, over their median.
"""

import argparse
import os
import statistics
from pathlib import Path

import speed

TENSOR = dict(model="bert-base", batch=4, sequence=128, steps=5)
PIPELINE = dict(model="bert-base", batch=64, sequence=128, steps=3)
MICRO_BATCHES = ["--micro-batches", 8]
LEAST = {"tensor 2": 0.85, "pipeline 2": 0.80}


def ratios(arguments, claim, options):
    """Runs every variant once a pair: the median of each / one rank, which is the first, and the spread of that."""
    made = {name: [] for name in options}
    names = list(options)
    for pair in range(arguments.pairs):
        for name in names if pair % 2 == 0 else names[::-1]:
            record = speed.run_ours(arguments.bench, claim, "--no-floor", *options[name])
            made[name].append(record["tokens_per_s"])
        speed.say(f"pair {pair + 1}: " + ", ".join(f"{name} {made[name][-1]:.0f}" for name in names) + " tokens/s")
    alone = made[names[0]]
    return {name: statistics.median(two / one for two, one in zip(made[name], alone)) for name in names[1:]}, alone


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our step_bench program")
    arguments = speed.options(parser, pairs=5)
    tensor, alone = ratios(arguments, TENSOR, {
        "one rank": [],
        "tensor 2": ["--ranks", 2, "--tensor", 2],
        "tensor 2 with sequence sharding": ["--ranks", 2, "--tensor", 2, "--sequence"],
    })
    pipeline, alone_in_micro_batches = ratios(arguments, PIPELINE, {
        "one rank": MICRO_BATCHES,
        "pipeline 2": ["--ranks", 2, "--pipeline", 2, "--schedule", "zb-1p", *MICRO_BATCHES],
    })
    noise = max(speed.spread(alone), speed.spread(alone_in_micro_batches))
    speed.say(f"one rank's spread: {100 * noise:.1f} %; load average after: {os.getloadavg()[0]:.2f}")
    found = tensor | pipeline
    is_fast = all(found[name] >= least for name, least in LEAST.items())
    outcome = "noisy" if noise > speed.MAX_SPREAD else "ok" if is_fast else "short"
    figures = ",".join(f"{key}={found[name]:.3f}x" for key, name in (
        ("tensor", "tensor 2"), ("sequence", "tensor 2 with sequence sharding"), ("pipeline", "pipeline 2")))
    speed.verdict(f"speed-tp {figures},{arguments.isa or 'best'}", outcome)


if __name__ == "__main__":
    main()
