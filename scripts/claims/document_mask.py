"""Documents packed into one sequence against the same documents as sequences of their own.

    python document_mask.py STEP_BENCH ATTENTION_BENCH [--pairs 5] [--isa avx2|avx512]

Runs attention alone, forward and backward, and a training step of GPT-2 on 16 sequences of 128 tokens and on one
sequence of 2,048 with 16 documents of 128, in turn, every one in a process of its own; which goes first changes with
every pair. A figure is the median over the pairs of the time packed / apart, each at most 1.25.

The last line on stdout is `document-mask FIGURES ok|short|noisy`, exit status 0, 1 or 75. It is noisy when the times of
the sequences apart spread by more than 10 %: largest less smallest, over their median.
"""

import argparse
import os
import statistics
import subprocess
from pathlib import Path

import speed

MAX = 1.25
APART = dict(model="gpt2", batch=16, sequence=128, steps=3)
PACKED = dict(model="gpt2", batch=1, sequence=2048, steps=3)


def attention(bench, name):
    """Seconds of the fastest forward and backward pass of a case of `cpu_bench attention`."""
    command = [str(bench), "attention", str(speed.THREADS), "2", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    forward, backward = done.stdout.strip().split("\n")[-1].split()[1:3]
    return (float(forward) + float(backward)) / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our step_bench program")
    parser.add_argument("attention", type=Path, help="our cpu_bench program")
    arguments = speed.options(parser, pairs=5)
    made = {
        ("attention", "apart"): lambda: attention(arguments.attention, "documents-apart"),
        ("attention", "packed"): lambda: attention(arguments.attention, "documents-packed"),
        ("step", "apart"): lambda: speed.run_ours(arguments.bench, APART, "--no-floor")["step_s"],
        ("step", "packed"): lambda: speed.run_ours(arguments.bench, PACKED, "--no-floor", "--documents", 128)["step_s"],
    }
    times = {what: [] for what in made}
    for pair in range(arguments.pairs):
        for what in list(made) if pair % 2 == 0 else list(made)[::-1]:
            times[what].append(made[what]())
        seen = ", ".join(f"{' '.join(what)} {times[what][-1] * 1e3:.2f} ms" for what in times)
        speed.say(f"pair {pair + 1}: {seen}")
    found, noise = {}, 0.0
    for name in ("attention", "step"):
        apart, packed = times[name, "apart"], times[name, "packed"]
        found[name] = statistics.median(p / a for p, a in zip(packed, apart))
        noise = max(noise, speed.spread(apart))
    speed.say(f"spread apart: {100 * noise:.1f} %; load average after: {os.getloadavg()[0]:.2f}")
    is_fast = all(ratio <= MAX for ratio in found.values())
    outcome = "noisy" if noise > speed.MAX_SPREAD else "ok" if is_fast else "short"
    figures = ",".join(f"{name}={ratio:.3f}x" for name, ratio in found.items())
    speed.verdict(f"document-mask {figures},{arguments.isa or 'best'}", outcome)


if __name__ == "__main__":
    main()
