"""Our training step against PyTorch's, in turn, on this machine.

    python speed.py ID STEP_BENCH [--pairs 7] [--no-compile] [--isa avx2|avx512]

Runs scripts/torch_step.py and our step_bench alternately, each in a process of its own, two threads each, the same
model, batch and dtype; which of the two goes first changes with every pair. A figure is the median over the pairs of
ours / PyTorch's: tokens per second, peak resident memory, or both, each with its bound; the instruction set that ours
used follows. --isa holds both sides to one.

The last line on stdout is `ID FIGURES ok|short|noisy`, exit status 0, 1 or 75. It is noisy when PyTorch's own values
spread by more than 10 %: largest less smallest, over their median. A claim of speed is short too if we are slower than
PyTorch after torch.compile, where that is available; it is run once. On stderr: every pair, the medians of both sides,
PyTorch after torch.compile, and the time of our matrix products alone, below which no step can be.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import instruction_sets

TORCH_STEP = Path(__file__).resolve().parents[1] / "torch_step.py"
THREADS = 2
MAX_SPREAD = 0.10

# target: tokens of a sequence's target, where there is one; steps: timed steps of one process; recompute: which
# blocks are recomputed on our side. The ratio ours / PyTorch's has to be at least or at most what is given here by key.
CLAIMS = {
    "speed-bert-base": dict(model="bert-base", batch=8, sequence=128, steps=5, least=dict(tokens_per_s=1.2)),
    "speed-minilm": dict(model="minilm", batch=16, sequence=128, steps=15, least=dict(tokens_per_s=1.15)),
    "speed-gpt2": dict(model="gpt2", batch=4, sequence=256, steps=5, least=dict(tokens_per_s=1.2)),
    "speed-t5": dict(model="t5-base", batch=4, sequence=128, target=32, steps=7, least=dict(tokens_per_s=1.2)),
    "rss-bert-base": dict(model="bert-base", batch=8, sequence=128, steps=2, most=dict(peak_rss_bytes=0.65)),
    "rss-bert-base-recompute": dict(model="bert-base", batch=8, sequence=128, steps=5, recompute="auto",
                                    most=dict(peak_rss_bytes=0.55), least=dict(tokens_per_s=0.95)),
    "rss-gpt2": dict(model="gpt2", batch=4, sequence=256, steps=2, most=dict(peak_rss_bytes=0.5)),
}
# With AVX2, for which PyTorch's libraries are made as much as ours, the least ratio of a claim that has `speed` in its
# name, and the least against torch.compile.
AVX2_LEAST, COMPILED_LEAST = 1.25, 1.0
# What a figure is called where a claim has more than one.
KEYS = {"peak_rss_bytes": "memory", "tokens_per_s": "speed"}


def say(text):
    print(text, file=sys.stderr, flush=True)


def verdict(figures, outcome):
    """The last line on stdout, and the exit status that goes with it."""
    print(f"{figures} {outcome}")
    sys.exit({"ok": 0, "short": 1, "noisy": 75}[outcome])


def run(command, variables=None):
    """The record a program prints as its last line, with these variables in its environment besides."""
    done = subprocess.run([str(argument) for argument in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=os.environ | (variables or {}))
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().split("\n")[-1])


def options(parser, pairs=7):
    """Reads the arguments of a comparison in pairs; holds every program that is started from here on to --isa."""
    parser.add_argument("--pairs", type=int, default=pairs)
    instruction_sets.add_option(parser)
    arguments = parser.parse_args()
    if arguments.pairs < 3:
        parser.error("--pairs: a median and a spread need at least 3")
    instruction_sets.hold(arguments.isa)
    say(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors")
    return arguments


def target_of(claim):
    return ["--target", claim["target"]] if "target" in claim else []


def run_torch(claim, *options):
    return run([sys.executable, TORCH_STEP, claim["model"], claim["batch"], claim["sequence"], claim["steps"],
                *target_of(claim), "--threads", THREADS, "--json", *options])


def run_ours(bench, claim, *options):
    return run([bench, "--model", claim["model"], "--batch", claim["batch"], "--seq", claim["sequence"],
                *target_of(claim), "--recompute", claim.get("recompute", "none"), "--steps", claim["steps"],
                "--threads", THREADS, "--json", *options])


def bounds(claim):
    """Every bound of a claim, by key."""
    return claim.get("most", {}) | claim.get("least", {})


def reached(claim, ratios):
    """Whether every ratio is on the right side of its bound."""
    return (all(ratios[key] <= bound for key, bound in claim.get("most", {}).items())
            and all(ratios[key] >= bound for key, bound in claim.get("least", {}).items()))


def spread(values):
    """The range over the median."""
    return (max(values) - min(values)) / statistics.median(values)


def describe(name, records):
    median = {key: statistics.median(r[key] for r in records) for key in ("step_s", "tokens_per_s", "peak_rss_bytes")}
    say(f"{name}: step {median['step_s']:.3f} s, {median['tokens_per_s']:.0f} tokens/s, "
        f"peak {median['peak_rss_bytes'] / 2**30:.2f} GiB (medians)")


def print_beside(bench, claim, compiled):
    """Shows our matrix products alone and PyTorch after torch.compile; returns the tokens/s of the latter, if any."""
    floor = run_ours(bench, claim)["gemm_floor_s"]
    say(f"our matrix products alone: {floor:.3f} s a step")
    if not compiled:
        return None
    try:
        record = run_torch(claim, "--compile")
    except RuntimeError as fault:
        say(f"PyTorch after torch.compile: not available here ({str(fault).strip().splitlines()[-1]})")
        return None
    say(f"PyTorch after torch.compile: step {record['step_s']:.3f} s, {record['tokens_per_s']:.0f} tokens/s")
    return record["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", choices=CLAIMS)
    parser.add_argument("bench", type=Path, help="our step_bench program")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = options(parser)
    claim = CLAIMS[arguments.id]
    is_speed = arguments.id.startswith("speed-")
    if arguments.isa == "avx2" and is_speed:
        claim["least"]["tokens_per_s"] = AVX2_LEAST

    keys = [key for key in KEYS if key in bounds(claim)]

    ours, theirs = [], []
    for pair in range(arguments.pairs):
        if pair % 2 == 0:
            theirs.append(run_torch(claim))
            ours.append(run_ours(arguments.bench, claim, "--no-floor"))
        else:
            ours.append(run_ours(arguments.bench, claim, "--no-floor"))
            theirs.append(run_torch(claim))
        say(f"pair {pair + 1}: ours {ours[-1]['step_s']:.3f} s, {ours[-1]['peak_rss_bytes'] / 2**30:.2f} GiB; "
            f"PyTorch {theirs[-1]['step_s']:.3f} s, {theirs[-1]['peak_rss_bytes'] / 2**30:.2f} GiB; "
            + ", ".join(f"{KEYS[key]} {ours[-1][key] / theirs[-1][key]:.3f}x" for key in keys))
    describe("ours", ours)
    describe(f"PyTorch {theirs[0]['torch']}", theirs)
    compiled = print_beside(arguments.bench, claim, not arguments.no_compile) if is_speed else None

    noise = max(spread([record[key] for record in theirs]) for key in keys)
    say(f"PyTorch's own spread: {100 * noise:.1f} %; "
        f"load average after: {os.getloadavg()[0]:.2f}")
    ratios = {key: statistics.median(a[key] / b[key] for a, b in zip(ours, theirs)) for key in keys}
    ok = reached(claim, ratios)
    if compiled:
        over_compiled = statistics.median(record["tokens_per_s"] for record in ours) / compiled
        say(f"ours over PyTorch after torch.compile: {over_compiled:.3f}x")
        ok &= over_compiled >= COMPILED_LEAST
    outcome = "noisy" if noise > MAX_SPREAD else "ok" if ok else "short"
    figures = [f"{f'{KEYS[key]}=' if len(keys) > 1 else ''}{ratio:.3f}x" for key, ratio in ratios.items()]
    verdict(f"{arguments.id} {','.join(figures)},{instruction_sets.used(ours[0])}", outcome)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as fault:
        sys.exit(f"error: {fault}")
