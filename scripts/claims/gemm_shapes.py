"""Our matrix products against the fastest of three libraries, shape by shape.

    python gemm_shapes.py GEMM_BENCH GEMM_PEER --isa avx2|avx512 [--rounds 7] [--seconds 0.15] [--part NAME]

`gemm_bench` has the shapes: the products of BERT-base's and MiniLM's layers, of few rows, and of heads, on one
thread and on two. The libraries are the gemm crate, OpenBLAS (by NumPy) and PyTorch (by MKL and oneDNN), all held to
the same instruction set. Rounds run every program in turn; a speed is the median over the rounds of the best of many
runs. The ratio of a shape is ours / the best of the three.

The last line on stdout is `gemm-shapes FIGURE ok|short`, exit status 0 or 1: the smallest ratio, the geometric mean of
all, and the least share of the peak that weight gradients reach. On stderr: every shape.
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
from speed import say, verdict

PRODUCTS = Path(__file__).resolve().parents[1] / "peers" / "products.py"
LEAST, MEAN, WEIGHT_GRADIENTS = 0.95, 1.0, 0.75


def lines_of(command, environment, text=""):
    done = subprocess.run([str(part) for part in command], input=text, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.split("\n")[:-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our gemm_bench program")
    parser.add_argument("peer", type=Path, help="the gemm crate's program, built for the instruction set")
    instruction_sets.add_option(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.15, help="for each shape in each round")
    parser.add_argument("--part", default="", help="only shapes with this in their names")
    arguments = parser.parse_args()

    if arguments.isa is None:
        parser.error("--isa is needed: the gemm crate is built for one")
    instruction_sets.hold(arguments.isa)
    environment = dict(os.environ)
    speeds = collections.defaultdict(lambda: collections.defaultdict(list))
    shares = collections.defaultdict(list)
    for _ in range(arguments.rounds):
        ours = lines_of([arguments.bench, "--json", "--seconds", arguments.seconds, arguments.part], environment)
        records = [json.loads(line) for line in ours]
        for threads in (1, 2):
            some = [record for record in records if record["threads"] == threads]
            keys = [(record["name"], record["role"], *record["size"], threads) for record in some]
            for key, record in zip(keys, some):
                speeds[key]["ours"].append(record["gflops"])
                shares[key].append(record["share"])
            text = "\n".join(json.dumps(record) for record in some)
            variables = {**environment, "OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
            for name, command in [
                ("gemm", [arguments.peer]),
                ("OpenBLAS", [sys.executable, PRODUCTS, "numpy"]),
                ("PyTorch", [sys.executable, PRODUCTS, "torch"]),
            ]:
                for key, line in zip(keys, lines_of([*command, arguments.seconds], variables, text)):
                    speeds[key][name].append(float(line))

    ratios, gradients = {}, []
    for key, by in speeds.items():
        medians = {name: statistics.median(values) for name, values in by.items()}
        ours = medians.pop("ours")
        best = max(medians, key=medians.get)
        ratios[key] = ours / medians[best]
        share = statistics.median(shares[key])
        name, role, m, n, k, threads = key
        if role == "WeightGradient" and not name.startswith("skinny"):
            gradients.append(share)
        say(f"{name:<12} {role:<15} {m:>5} {n:>5} {k:>5}, {threads} thread(s): {ours:6.1f} GFLOP/s, "
            f"{share:4.0%} of peak, {ratios[key]:5.2f} x {best} " +
            ", ".join(f"{name} {speed:.1f}" for name, speed in medians.items()))
    least, mean = min(ratios.values()), math.exp(statistics.fmean(map(math.log, ratios.values())))
    ok = least >= LEAST and mean >= MEAN
    figure = f"{arguments.isa},least_{least:.2f},mean_{mean:.2f}"
    if gradients:
        ok &= arguments.isa != "avx2" or min(gradients) >= WEIGHT_GRADIENTS
        figure += f",weight_gradients_{min(gradients):.2f}_of_peak"
    verdict(f"gemm-shapes {figure}", "ok" if ok else "short")


if __name__ == "__main__":
    main()
