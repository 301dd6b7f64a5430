"""Our training step on two ranks under ZeRO-3 against that on one rank, and against DeepSpeed's, on this machine.

    python speed_zero3.py STEP_BENCH [--rounds 7] [--no-torch]

Each round runs one rank with two threads, two ranks with one thread each, and PyTorch with two threads, every one in a
process of its own on the same model and batch; the order turns with the round. Two figures, medians over the rounds:
two ranks / one rank, and two ranks / DeepSpeed. DeepSpeed is not run: measured in turn with PyTorch on one machine it
made 1,146 tokens/s where PyTorch made 1,584, and PyTorch is measured here.

The last line on stdout is `speed-zero3 ONEx/TWOx ok|short|noisy`, exit status 0, 1 or 75. It is noisy when the values
of one rank, or PyTorch's, spread by more than 10 %: largest less smallest, over their median. With --no-torch the
second figure is left out and the verdict is on the first.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

import speed

CLAIM = dict(model="minilm", batch=16, sequence=128, steps=15)
# DeepSpeed 0.19.8, ZeRO-3, 2 processes of one thread over gloo / PyTorch 2.15.0, 2 threads: tokens per second.
DEEPSPEED = 1146 / 1584
LEAST_OF_ONE_RANK = 0.92
LEAST_OF_DEEPSPEED = 1.5


def tokens(record):
    return record["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our step_bench program")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-torch", action="store_true", help="leave the comparison with DeepSpeed out")
    arguments = parser.parse_args()
    if arguments.rounds < 3:
        parser.error("--rounds: a median and a spread need at least 3")

    runners = {
        "one rank": lambda: tokens(speed.run_ours(arguments.bench, CLAIM, "--no-floor")),
        "two ranks": lambda: tokens(speed.run_ours(arguments.bench, CLAIM, "--no-floor", "--ranks", 2, "--zero", 3)),
    }
    if not arguments.no_torch:
        runners["PyTorch"] = lambda: tokens(speed.run_torch(CLAIM))
    speed.say(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors")
    made = {name: [] for name in runners}
    names = list(runners)
    for round_number in range(arguments.rounds):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            made[name].append(runners[name]())
        speed.say(f"round {round_number + 1}: " + ", ".join(f"{name} {made[name][-1]:.0f}" for name
                                                            in names) + " tokens/s")

    def ratio(other, factor=1.0):
        return statistics.median(two / (factor * one) for two, one in zip(made["two ranks"], made[other]))

    figures = [(ratio("one rank"), LEAST_OF_ONE_RANK)]
    steady = ["one rank"]
    if not arguments.no_torch:
        figures.append((ratio("PyTorch", DEEPSPEED), LEAST_OF_DEEPSPEED))
        steady.append("PyTorch")
    for name in names:
        speed.say(f"{name}: median {statistics.median(made[name]):.0f} tokens/s, spread "
                  f"{100 * speed.spread(made[name]):.1f} %")
    speed.say(f"load average after: {os.getloadavg()[0]:.2f}")
    reached = all(figure >= bound for figure, bound in figures)
    noisy = any(speed.spread(made[name]) > speed.MAX_SPREAD for name in steady)
    outcome = "noisy" if noisy else "ok" if reached else "short"
    speed.verdict(f"speed-zero3 {'/'.join(f'{figure:.3f}x' for figure, _ in figures)}", outcome)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as fault:
        sys.exit(f"error: {fault}")
