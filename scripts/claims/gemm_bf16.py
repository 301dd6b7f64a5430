"""Our matrix products in bf16 by tiles of AMX against our own in f32 and PyTorch's in bf16, shape by shape.

    python gemm_bf16.py GEMM_BENCH [--rounds 5] [--seconds 0.15] [--part NAME]

Measures the shapes of `cpu_bench gemm` with 128 rows or more, on one thread and on two; results are bf16 too. Every
round measures each shape with the three programs one directly after the other, since the clock of a shared machine
changes within seconds; each gives the best of many runs. A ratio is the median over the rounds. Where the ratio to
PyTorch is below its bound, as many rounds again are added for that shape. Shares are of the peak of tiles, which is
measured beside each product, in registers and with numbers of ordinary size.

The last line on stdout is `gemm-bf16 FIGURE ok|short|noisy`, exit status 0, 1 or 75: the geometric means of the ratios
to f32 and to PyTorch, and the least ratio to PyTorch. It is noisy when the least ratio alone is missed, by shapes whose
ratio spreads by more than 10 %. On stderr: every shape.
"""

import argparse
import collections
import json
import math
import os
import statistics
import sys
from pathlib import Path

from gemm_shapes import PRODUCTS, Figures, Program
from speed import MAX_SPREAD, say, spread, verdict

ROWS, OVER_F32, OVER_PYTORCH, LEAST = 128, 5.0, 1.0, 0.9


def measure(arguments, threads, part, figures):
    """One more set of rounds for the shapes that have `part` in their names and roles, into `figures` by shape."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    options = ["gemm", "--json", "--on-request", "--threads", threads, "--seconds", arguments.seconds, part]
    tiles = Program([arguments.bench, *options, "--dtype", "bf16"], {**variables, "BMTRAIN_CPU": "amx"})
    others = {
        "f32": Program([arguments.bench, *options], {**variables, "BMTRAIN_CPU": "avx512"}),
        "PyTorch": Program([sys.executable, PRODUCTS, "torch", arguments.seconds], variables),
    }
    seen = collections.Counter()
    while True:
        record = json.loads(tiles.ask(""))
        key = (record["name"], record["role"], *record["size"], threads)
        if seen[key] == arguments.rounds:
            break  # It has started over: this one is not counted.
        seen[key] += 1
        f32 = json.loads(others["f32"].ask(""))["gflops"]
        if record["size"][0] < ROWS:
            continue
        of = figures[key]
        of.speeds["ours"].append(record["gflops"])
        of.shares.append(record["share"])
        of.speeds["f32"].append(f32)
        of.speeds["PyTorch"].append(float(others["PyTorch"].ask(json.dumps(record))))
    for program in (tiles, *others.values()):
        program.close()


def median(of, name):
    return statistics.median(of.ratios(name))


def mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="our cpu_bench program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.15, help="for each shape in each round")
    parser.add_argument("--part", default="", help="only shapes with this in their names and roles")
    arguments = parser.parse_args()

    figures = collections.defaultdict(Figures)
    for threads in (1, 2):
        measure(arguments, threads, arguments.part, figures)
    for name, role, *_, threads in [key for key, of in figures.items() if median(of, "PyTorch") < LEAST]:
        say(f"{name} {role} on {threads} thread(s) is measured again")
        measure(arguments, threads, f"{name} {role}", figures)

    noisy = True
    for (name, role, m, n, k, threads), of in figures.items():
        ratio = median(of, "PyTorch")
        if ratio < LEAST:
            noisy &= spread(of.ratios("PyTorch")) > MAX_SPREAD
        speeds = {name: statistics.median(values) for name, values in of.speeds.items()}
        say(f"{name:<12} {role:<15} {m:>5} {n:>5} {k:>5}, {threads} thread(s): {speeds['ours']:7.1f} GFLOP/s, "
            f"{statistics.median(of.shares):4.0%} of the peak of tiles, {median(of, 'f32'):5.2f} x f32 of "
            f"{speeds['f32']:.1f}, {ratio:5.2f} x PyTorch of {speeds['PyTorch']:.1f}")
    over_f32, over_pytorch = (mean([median(of, name) for of in figures.values()]) for name in ("f32", "PyTorch"))
    least = min(median(of, "PyTorch") for of in figures.values())
    ok = over_f32 >= OVER_F32 and over_pytorch >= OVER_PYTORCH
    figure = f"{over_f32:.2f}_x_f32,mean_{over_pytorch:.2f},least_{least:.2f}"
    verdict(f"gemm-bf16 {figure}", "short" if not ok else "ok" if least >= LEAST else "noisy" if noisy else "short")


if __name__ == "__main__":
    main()
