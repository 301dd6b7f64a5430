"""Our matrix products of bf16 against our own in f32 and PyTorch's in bf16, shape by shape.

    python gemm_bf16.py GEMM_BENCH [--rounds 5] [--seconds 0.15] [--part NAME]

By the instruction set that our program chooses: tiles of AMX, or dot products of AVX512_BF16. Where it chooses another
there is nothing to measure. Measures the shapes of `cpu_bench gemm` with 128 rows or more, on one thread and on two;
results are bf16 too. Every round measures each shape with the three programs one directly after the other, since the
clock of a shared machine changes within seconds; each gives the best of many runs. A ratio is the median over the
rounds. Where the ratio to PyTorch is below its bound, as many rounds again are added for that shape. Shares are of the
peak of such products, which is measured beside each, in registers and with numbers of ordinary size.

The last line on stdout is `gemm-bf16 FIGURE ok|short|noisy`, exit status 0, 1 or 75: the instruction set, the geometric
means of the ratios to f32 and to PyTorch, and the least ratio to PyTorch. It is noisy when the least ratio alone is
missed, by shapes whose ratio spreads by more than 10 %. On stderr: every shape. """

import argparse
import collections
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

from gemm_shapes import PRODUCTS, Figures, Program, records
from speed import MAX_SPREAD, say, spread, verdict

ROWS, OVER_PYTORCH, LEAST = 128, 1.0, 0.9
OVER_F32 = {"amx": 5.0, "avx512_bf16": 1.7}


def measure(arguments, threads, part, figures):
    """One more set of rounds for the shapes that have `part` in their names and roles, into `figures` by shape."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    options = ["gemm", "--json", "--on-request", "--threads", threads, "--seconds", arguments.seconds, part]
    ours = Program([arguments.bench, *options, "--dtype", "bf16"], variables)
    others = {
        "f32": Program([arguments.bench, *options], {**variables, "BMTRAIN_CPU": "avx512"}),
        "PyTorch": Program([sys.executable, PRODUCTS, "torch", arguments.seconds], variables),
    }
    for key, record in records(ours, arguments.rounds, threads):
        f32 = json.loads(others["f32"].ask(""))["gflops"]
        if record["size"][0] < ROWS:
            continue
        of = figures[key]
        of.speeds["ours"].append(record["gflops"])
        of.shares.append(record["share"])
        of.speeds["f32"].append(f32)
        of.speeds["PyTorch"].append(float(others["PyTorch"].ask(json.dumps(record))))
    for program in (ours, *others.values()):
        program.close()


def chosen(arguments):
    """The instruction set that our program uses of its own accord."""
    options = ["--json", "--threads", "1", "--seconds", "0.01", "--dtype", "bf16", "bert out Forward"]
    return json.loads(subprocess.check_output([arguments.bench, "gemm", *options]).splitlines()[0])["isa"]


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

    isa = chosen(arguments)
    if isa not in OVER_F32:
        say(f"our program chooses {isa} on this processor")
        verdict(f"gemm-bf16 {isa}", "noisy")
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
            f"{statistics.median(of.shares):4.0%} of its peak, {median(of, 'f32'):5.2f} x f32 of "
            f"{speeds['f32']:.1f}, {ratio:5.2f} x PyTorch of {speeds['PyTorch']:.1f}")
    over_f32, over_pytorch = (mean([median(of, name) for of in figures.values()]) for name in ("f32", "PyTorch"))
    least = min(median(of, "PyTorch") for of in figures.values())
    ok = over_f32 >= OVER_F32[isa] and over_pytorch >= OVER_PYTORCH
    figure = f"{isa},{over_f32:.2f}_x_f32,mean_{over_pytorch:.2f},least_{least:.2f}"
    verdict(f"gemm-bf16 {figure}", "short" if not ok else "ok" if least >= LEAST else "noisy" if noisy else "short")


if __name__ == "__main__":
    main()
