"""Our training step against burn's and candle's, in turn, on this machine.

    python speed_peers.py STEP_BENCH PEERS [--pairs 5] [--isa avx2|avx512]

PEERS is the directory of burn_step and candle_step (scripts/peers), which train the same BERT with the same batches,
dropout, clipping and AdamW as step_bench, with two threads. Each of the two runs alternately with ours for each of two
models, every run a process of its own; which goes first changes with every pair. A figure is the median over the pairs
of ours / the peer's tokens per second; the instruction set that ours used follows the four. --isa holds both sides to
one.

The last line on stdout is `speed-peers FIGURES ok|short|noisy`, exit status 0, 1 or 75. It is short when a figure is
below its bound, or our median peak of resident memory is not below the peer's; noisy when the values of a peer spread
by more than 10 %: largest less smallest, over their median. On stderr: every pair, and the medians of both sides.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

import instruction_sets
import speed

PEERS = ("burn", "candle")
# A peer's step takes seconds, so that few of them are steady.
MODELS = {
    "minilm": dict(speed.CLAIMS["speed-minilm"], steps=5),
    "bert-base": dict(speed.CLAIMS["speed-bert-base"], steps=3),
}
LEAST = 2.5


def run_peer(program, claim):
    return speed.run([program, "--model", claim["model"], "--batch", claim["batch"], "--seq", claim["sequence"],
                      "--steps", claim["steps"], "--threads", speed.THREADS])


def compare(bench, program, claim, pairs):
    """The records of both sides, pair by pair."""
    ours, theirs = [], []
    for pair in range(pairs):
        if pair % 2 == 0:
            theirs.append(run_peer(program, claim))
            ours.append(speed.run_ours(bench, claim, "--no-floor"))
        else:
            ours.append(speed.run_ours(bench, claim, "--no-floor"))
            theirs.append(run_peer(program, claim))
        speed.say(f"{program.name}, {claim['model']}, pair {pair + 1}: ours {ours[-1]['step_s']:.3f} s, "
                  f"theirs {theirs[-1]['step_s']:.3f} s, ratio {ratio(ours[-1], theirs[-1]):.3f}; their loss "
                  f"{theirs[-1]['loss_first']:.4f} -> {theirs[-1]['loss']:.4f}")
    return ours, theirs


def ratio(ours, theirs):
    return ours["tokens_per_s"] / theirs["tokens_per_s"]


def peak(records):
    return statistics.median(record["peak_rss_bytes"] for record in records)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our step_bench program")
    parser.add_argument("peers", type=Path, help="the directory of the peers' programs")
    arguments = speed.options(parser, pairs=5)

    figures, reached, noisy = [], True, False
    for peer in PEERS:
        for model, claim in MODELS.items():
            ours, theirs = compare(arguments.bench, arguments.peers / f"{peer}_step", claim, arguments.pairs)
            figure = statistics.median(map(ratio, ours, theirs))
            noise = speed.spread([record["tokens_per_s"] for record in theirs])
            speed.describe(f"ours, {model}", ours)
            first = theirs[0]
            speed.describe(f"{first['library']} {first['version']} ({first['backend']}), {model}", theirs)
            speed.say(f"its own spread: {100 * noise:.1f} %")
            figures.append(f"{peer}:{model}={figure:.2f}x")
            reached &= figure >= LEAST and peak(ours) < peak(theirs)
            noisy |= noise > speed.MAX_SPREAD
    speed.say(f"load average after: {os.getloadavg()[0]:.2f}")
    figures.append(instruction_sets.used(ours[0]))
    speed.verdict(f"speed-peers {','.join(figures)}", "noisy" if noisy else "ok" if reached else "short")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as fault:
        sys.exit(f"error: {fault}")
