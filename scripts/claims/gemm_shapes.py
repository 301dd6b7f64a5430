"""Our matrix products against the fastest of three libraries, shape by shape.

    python gemm_shapes.py GEMM_BENCH GEMM_PEER --isa avx2|avx512 [--rounds 7] [--seconds 0.15] [--part NAME]

`cpu_bench gemm` has the shapes: the products of BERT-base's and MiniLM's layers, of few rows, and of heads, on one
thread and on two. The libraries are the gemm crate, OpenBLAS (by NumPy) and PyTorch (by MKL and oneDNN), all held to
the same instruction set. Every round measures each shape with the four programs one directly after the other, since
the clock of a shared machine changes within seconds; each gives the best of many runs. The ratio of a shape to a
library is the median over the rounds of ours / theirs, and the ratio of the shape is the least of the three. Where it
is below the bound, as many rounds again are added for that shape. The peak of a share is measured beside the product.

The last line on stdout is `gemm-shapes FIGURE ok|short|noisy`, exit status 0, 1 or 75: the smallest ratio, the
geometric mean of all, and the least share of the peak that weight gradients reach. It is noisy when the least ratio
alone is missed, by shapes whose ratio spreads by more than 10 % (largest less smallest, over the median). On stderr:
every shape.
"""

import argparse
import collections
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import instruction_sets
from speed import MAX_SPREAD, say, spread, verdict

PRODUCTS = Path(__file__).resolve().parents[1] / "peers" / "products.py"
LEAST, MEAN, WEIGHT_GRADIENTS = 0.95, 1.0, 0.75


class Program:
    """A program that answers a line of standard input with a line."""

    def __init__(self, command, environment):
        self.command = [str(part) for part in command]
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.command} ended with status {self.process.wait()}")
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Figures:
    """What was measured of a shape: speeds of each program and shares of the peak, round by round."""

    def __init__(self):
        self.speeds, self.shares = collections.defaultdict(list), []

    def ratios(self, name):
        return [ours / theirs for ours, theirs in zip(self.speeds["ours"], self.speeds[name])]

    def nearest(self):
        """The library that is fastest beside ours, and the ratio to it."""
        medians = {name: statistics.median(self.ratios(name)) for name in self.speeds if name != "ours"}
        name = min(medians, key=medians.get)
        return name, medians[name]


def records(bench, rounds, threads):
    """The records of `cpu_bench gemm --on-request`, each measured when it is asked for, with the key of its shape:
    `rounds` of every shape."""
    seen = collections.Counter()
    while True:
        record = json.loads(bench.ask(""))
        key = (record["name"], record["role"], *record["size"], threads)
        if seen[key] == rounds:
            return  # It has started over: this one is not counted.
        seen[key] += 1
        yield key, record


def measure(arguments, threads, part, figures):
    """One more set of rounds for the shapes that have `part` in their names and roles, into `figures` by shape."""
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    seconds = ["--seconds", arguments.seconds]
    options = ["--json", "--on-request", "--threads", threads, *seconds, part]
    bench = Program([arguments.bench, "gemm", *options], variables)
    libraries = {
        "gemm": Program([arguments.peer, arguments.seconds], variables),
        "OpenBLAS": Program([sys.executable, PRODUCTS, "numpy", arguments.seconds], variables),
        "PyTorch": Program([sys.executable, PRODUCTS, "torch", arguments.seconds], variables),
    }
    for key, record in records(bench, arguments.rounds, threads):
        of = figures[key]
        of.speeds["ours"].append(record["gflops"])
        of.shares.append(record["share"])
        for name, program in libraries.items():
            of.speeds[name].append(float(program.ask(json.dumps(record))))
    for program in (bench, *libraries.values()):
        program.close()


def measure_again(arguments, figures):
    """As many rounds again for the shapes that are below the bound."""
    for name, role, *_, threads in [key for key, of in figures.items() if of.nearest()[1] < LEAST]:
        say(f"{name} {role} on {threads} thread(s) is measured again")
        measure(arguments, threads, f"{name} {role}", figures)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our cpu_bench program")
    parser.add_argument("peer", type=Path, help="the gemm crate's program, built for the instruction set")
    instruction_sets.add_option(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.15, help="for each shape in each round")
    parser.add_argument("--part", default="", help="only shapes with this in their names and roles")
    arguments = parser.parse_args()

    if arguments.isa is None:
        parser.error("--isa is needed: the gemm crate is built for one")
    instruction_sets.hold(arguments.isa)
    figures = collections.defaultdict(Figures)
    for threads in (1, 2):
        measure(arguments, threads, arguments.part, figures)
    measure_again(arguments, figures)

    ratios, gradients, noisy = [], [], True
    for key, of in figures.items():
        name, role, m, n, k, threads = key
        (nearest, ratio), share = of.nearest(), statistics.median(of.shares)
        ratios.append(ratio)
        if ratio < LEAST:
            noisy &= spread(of.ratios(nearest)) > MAX_SPREAD
        if role == "WeightGradient" and not name.startswith("skinny"):
            gradients.append(share)
        medians = {name: statistics.median(values) for name, values in of.speeds.items()}
        say(f"{name:<12} {role:<15} {m:>5} {n:>5} {k:>5}, {threads} thread(s): {medians.pop('ours'):6.1f} GFLOP/s, "
            f"{share:4.0%} of peak, {ratio:5.2f} x {nearest} of " +
            ", ".join(f"{name} {speed:.1f}" for name, speed in medians.items()))
    least, mean = min(ratios), math.exp(statistics.fmean(map(math.log, ratios)))
    ok = mean >= MEAN
    figure = f"{arguments.isa},least_{least:.2f},mean_{mean:.2f}"
    if gradients:
        ok &= arguments.isa != "avx2" or min(gradients) >= WEIGHT_GRADIENTS
        figure += f",weight_gradients_{min(gradients):.2f}_of_peak"
    outcome = "short" if not ok else "ok" if least >= LEAST else "noisy" if noisy else "short"
    verdict(f"gemm-shapes {figure}", outcome)


if __name__ == "__main__":
    main()
