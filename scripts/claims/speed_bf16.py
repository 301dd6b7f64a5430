"""Our training step in bf16 against PyTorch's under autocast and against our own in f32, in turn, on this machine.

    python speed_bf16.py ID STEP_BENCH [--pairs 3] [--models bert-base,..]

For each model: scripts/torch_step.py with `--dtype autocast`, our step_bench with `--dtype bf16`, and our step_bench
in f32, each in a process of its own, two threads each, the same model and batch; which goes first changes with every
round. PyTorch with bf16 weights, which keeps no f32 copies of them, is one round more where a bound names it. A figure
is the median over the rounds of our tokens per second over the other's, and of peak resident memory.

The last line on stdout is `ID FIGURES ok|short|noisy`, exit status 0, 1 or 75: noisy where the processor does not
multiply bf16, or where PyTorch's own values of a model spread by more than 10 %.
"""

import argparse
import statistics
import sys
from pathlib import Path

import instruction_sets
from speed import MAX_SPREAD, options, run_ours, run_torch, say, spread, verdict

MODELS = {
    "bert-base": dict(batch=8, sequence=128, steps=5),
    "minilm": dict(batch=16, sequence=128, steps=9),
    "gpt2": dict(batch=4, sequence=256, steps=5),
    "llama-98m": dict(batch=2, sequence=512, steps=5),
    "t5-base": dict(batch=4, sequence=128, target=32, steps=5),
}
# Least tokens per second over autocast's, our own f32's, and over PyTorch's with bf16 weights, by instruction set.
BOUNDS = {
    "amx": {
        "bert-base": dict(autocast=1.8, f32=2.0),
        "minilm": dict(autocast=1.5),
        "gpt2": dict(autocast=1.6),
        "llama-98m": dict(autocast=1.6, bf16=1.3),
        "t5-base": dict(autocast=1.5),
    },
    "avx512_bf16": {
        "bert-base": dict(autocast=1.4, f32=1.4),
        "minilm": dict(autocast=1.5, f32=1.4),
        "gpt2": dict(autocast=1.6, f32=1.5),
        "llama-98m": dict(autocast=1.3, f32=1.5, bf16=1.2),
        "t5-base": dict(autocast=1.4, f32=1.4),
    },
}
MAX_MEMORY = 0.5


def measure(bench, name, claim, rounds):
    """The records of one model by side, a list of each."""
    claim = claim | {"model": name}
    sides = {
        "ours": lambda: run_ours(bench, claim, "--no-floor", "--dtype", "bf16"),
        "autocast": lambda: run_torch(claim, "--dtype", "autocast"),
        "f32": lambda: run_ours(bench, claim, "--no-floor"),
    }
    if any("bf16" in bounds[name] for bounds in BOUNDS.values()):
        sides["bf16"] = lambda: run_torch(claim, "--dtype", "bf16")
    records = {side: [] for side in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for side in order:
            records[side].append(sides[side]())
        seconds = ", ".join(f"{side} {records[side][-1]['step_s']:.3f} s" for side in sides)
        say(f"{name}, round {number + 1}: {seconds}")
    return records


def ratio(ours, theirs, key):
    return statistics.median(a[key] / b[key] for a, b in zip(ours, theirs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id")
    parser.add_argument("bench", type=Path, help="our step_bench program")
    parser.add_argument("--models", default=",".join(MODELS), help="which models, with commas between them")
    arguments = options(parser, pairs=3)
    figures, ok, noise = [], True, 0.0
    for name in arguments.models.split(","):
        records = measure(arguments.bench, name, MODELS[name], arguments.pairs)
        ours = records["ours"]
        if (used := instruction_sets.used(ours[0])) not in BOUNDS:
            say(f"{used} does not multiply bf16")
            verdict(f"{arguments.id} {used}", "noisy")
        noise = max(noise, spread([record["tokens_per_s"] for record in records["autocast"]]))
        speeds = {side: ratio(ours, records[side], "tokens_per_s") for side in ("autocast", "f32", "bf16")
                  if side in records}
        memory = ratio(ours, records["autocast"], "peak_rss_bytes")
        ok &= all(speeds[side] >= least for side, least in BOUNDS[used][name].items()) and memory <= MAX_MEMORY
        say(f"{name}: " + ", ".join(f"{value:.2f}x {side}" for side, value in speeds.items())
            + f", {memory:.2f} of autocast's memory")
        figures.append(f"{name}={speeds['autocast']:.2f}x/{speeds['f32']:.2f}x/{memory:.2f}")
    say(f"PyTorch's own spread: {100 * noise:.1f} % at most")
    verdict(f"{arguments.id} {','.join([used, *figures])}", "noisy" if noise > MAX_SPREAD else "ok" if ok else "short")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as fault:
        sys.exit(f"error: {fault}")
