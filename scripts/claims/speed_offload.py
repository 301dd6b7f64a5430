"""Our AdamOffload step against PyTorch's AdamW, in turn, on this machine.

    python speed_offload.py OPTIM_BENCH [--pairs 7]

Each round runs scripts/torch_adamw.py with AdamW as it is by default and with fused=True, and `cpu_bench optimizer`
between them, each in a process of its own, two threads each, on the same 110 million float32 values; the order turns
with every round. A process's value is the median of its steps; the figures are the medians over the rounds of PyTorch's
seconds / ours.

The last line on stdout is `speed-offload DEFAULT/FUSED ok|short|noisy`, exit status 0, 1 or 75. It is noisy when the
values of the fused AdamW spread by more than 10 %: largest less smallest, over their median. On stderr: every round,
the medians, and GB/s at the 28 bytes that each value has to move.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

from speed import MAX_SPREAD, THREADS, run, say, spread, verdict

TORCH_ADAMW = Path(__file__).resolve().parents[1] / "torch_adamw.py"
MILLIONS = 110
# Reads and writes of parameter, gradient and both moments.
BYTES = 28
BOUNDS = {"default": 1.5, "fused": 0.95}


def torch_adamw(variant):
    return run([sys.executable, TORCH_ADAMW, variant, "--millions", MILLIONS, "--threads", THREADS])


def ours(bench):
    return run([bench, "optimizer", "--variant", "offload", "--millions", MILLIONS, "--threads", THREADS, "--json"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our cpu_bench program")
    parser.add_argument("--pairs", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.pairs < 3:
        parser.error("--pairs: a median and a spread need at least 3")

    say(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors")
    measure = {"default": lambda: torch_adamw("default"), "ours": lambda: ours(arguments.bench),
               "fused": lambda: torch_adamw("fused")}
    seconds, version = {name: [] for name in measure}, ""
    for number in range(arguments.pairs):
        names = list(measure)
        # Ours stays in the middle, beside each of the two it is compared with.
        for name in names if number % 2 == 0 else reversed(names):
            record = measure[name]()
            seconds[name].append(record["step_s"])
            version = record.get("torch", version)
        say(f"round {number + 1}: " + ", ".join(f"{name} {1e3 * seconds[name][-1]:.1f} ms" for name in names))
    for name, values in seconds.items():
        median = statistics.median(values)
        who = "ours" if name == "ours" else f"PyTorch {version} AdamW, {name}"
        say(f"{who}: {1e3 * median:.1f} ms, {MILLIONS * 1e6 * BYTES / median / 1e9:.1f} GB/s (medians), spread "
            f"{100 * spread(values):.1f} %")
    say(f"load average after: {os.getloadavg()[0]:.2f}")

    figures = {name: statistics.median(theirs / mine for theirs, mine in zip(seconds[name], seconds["ours"]))
               for name in BOUNDS}
    reached = all(figures[name] >= bound for name, bound in BOUNDS.items())
    outcome = "noisy" if spread(seconds["fused"]) > MAX_SPREAD else "ok" if reached else "short"
    verdict(f"speed-offload {figures['default']:.2f}x/{figures['fused']:.2f}x", outcome)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as fault:
        sys.exit(f"error: {fault}")
