"""Our all-reduce between two ranks of one machine against OpenMPI's, in turn.

    python3 allreduce.py COLLECTIVES_BENCH MPI_COMMAND...

Each side runs in processes of its own and gives the median of some repetitions; which of the two goes first changes with every
pair. Prints `THREADS/PROCESSES ok|short|noisy`: the median over the pairs of OpenMPI's time over ours, for ranks that are
threads and ranks that are processes. It is noisy when OpenMPI's own values spread by more than 10 %: largest less smallest,
over their median. On stderr: every pair. Called by speed-allreduce.sh.
"""

import statistics
import subprocess
import sys

PAIRS, REPETITIONS, BOUND, MOST_SPREAD = 7, 10, 1.6, 0.10


def output(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def ours(bench, kind):
    """Microseconds; the line is `all_reduce SIZE UNIT MEDIAN us ...`."""
    arguments = ["--ranks", "2", "--kind", kind, "--only", "all_reduce", "--size", str(64 << 10), "--repeat", str(REPETITIONS)]
    line = next(line for line in output([bench, *arguments]).splitlines() if line.startswith("all_reduce"))
    size, unit, median, microseconds = line.split()[1:5]
    if (size, unit, microseconds) != ("64.0", "MiB", "us"):
        sys.exit(f"another line than expected: {line}")
    return float(median)


def main():
    bench, mpi = sys.argv[1], [*sys.argv[2:], str(REPETITIONS)]
    ratios, theirs = [], []
    for kind in ("threads", "processes"):
        pairs = []
        for number in range(PAIRS):
            if number % 2 == 0:
                own, other = ours(bench, kind), float(output(mpi))
            else:
                other, own = float(output(mpi)), ours(bench, kind)
            print(f"{kind}: ours {own / 1e3:.1f} ms, OpenMPI {other / 1e3:.1f} ms: {other / own:.2f}", file=sys.stderr, flush=True)
            pairs.append(other / own)
            theirs.append(other)
        ratios.append(statistics.median(pairs))
    spread = (max(theirs) - min(theirs)) / statistics.median(theirs)
    print(f"OpenMPI's values spread by {100 * spread:.1f} %", file=sys.stderr)
    word = "ok" if min(ratios) >= BOUND else "short"
    print(f"{ratios[0]:.2f}/{ratios[1]:.2f} {'noisy' if spread > MOST_SPREAD else word}")


if __name__ == "__main__":
    main()
