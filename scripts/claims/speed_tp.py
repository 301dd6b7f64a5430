"""Our training step of BERT-base on two tensor-parallel ranks against that on one rank, on this machine.

    python speed_tp.py STEP_BENCH [--pairs 5] [--isa avx2|avx512]

Runs one rank with two threads and two ranks with one thread each in turn, every one in a process of its own; which
goes first changes with every pair. A figure is the median over the pairs of two ranks / one rank in tokens per second:
without and with sequence sharding. The first has to be at least 0.85.

The last line on stdout is `speed-tp FIGURES ok|short|noisy`, exit status 0, 1 or 75. It is noisy when the values of one
rank spread by more than 10 %: largest less smallest, over their median.
"""

import argparse
import os
import statistics
from pathlib import Path

import speed

CLAIM = dict(model="bert-base", batch=4, sequence=128, steps=5)
LEAST = 0.85


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our step_bench program")
    arguments = speed.options(parser, pairs=5)
    options = {
        "one rank": [],
        "tensor 2": ["--ranks", 2, "--tensor", 2],
        "tensor 2 with sequence sharding": ["--ranks", 2, "--tensor", 2, "--sequence"],
    }
    made = {name: [] for name in options}
    names = list(options)
    for pair in range(arguments.pairs):
        for name in names if pair % 2 == 0 else names[::-1]:
            record = speed.run_ours(arguments.bench, CLAIM, "--no-floor", *options[name])
            made[name].append(record["tokens_per_s"])
        speed.say(f"pair {pair + 1}: " + ", ".join(f"{name} {made[name][-1]:.0f}" for name in names) + " tokens/s")
    ratios = [statistics.median(two / one for two, one in zip(made[name], made["one rank"])) for name in names[1:]]
    noise = speed.spread(made["one rank"])
    speed.say(f"one rank's spread: {100 * noise:.1f} %; load average after: {os.getloadavg()[0]:.2f}")
    outcome = "noisy" if noise > speed.MOST_SPREAD else "ok" if ratios[0] >= LEAST else "short"
    speed.verdict(f"speed-tp tensor={ratios[0]:.3f}x,sequence={ratios[1]:.3f}x,{arguments.isa or 'best'}", outcome)


if __name__ == "__main__":
    main()
