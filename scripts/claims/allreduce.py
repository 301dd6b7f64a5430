"""Our all-reduce between two ranks of one machine against OpenMPI's, in turn.

    python3 allreduce.py BENCH MPI_COMMAND...

Each side runs in processes of its own and gives the median of some repetitions; which of the two goes first changes
with every pair. Prints `THREADS/PROCESSES ok|short|noisy`: the median over the pairs of OpenMPI's time over ours, for
ranks that are threads and ranks that are processes. It is noisy when OpenMPI's own values spread by more than 10 %:
largest less smallest, over their median. On stderr: every pair. Called by speed-allreduce.sh.
"""

import json
import statistics
import subprocess
import sys

PAIRS, REPETITIONS, BOUND, MAX_SPREAD = 7, 10, 1.6, 0.10


def output(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def ours(bench, kind):
    """Microseconds."""
    processes = ["--processes"] if kind == "processes" else []
    arguments = ["--ranks", "2", *processes, "--only", "all_reduce", "--size", "64MiB", "--repeat", str(REPETITIONS),
                 "--json"]
    text = output([bench, "collectives", *arguments])
    lines = [json.loads(line) for line in text.splitlines()]
    if [(line["operation"], line["bytes"], line["ranks"]) for line in lines] != [("all_reduce", 64 << 20, 2)]:
        sys.exit(f"another figure than expected: {text}")
    return 1e6 * lines[0]["median_s"]


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
            print(f"{kind}: ours {own / 1e3:.1f} ms, OpenMPI {other / 1e3:.1f} ms: {other / own:.2f}", file=sys.stderr,
                  flush=True)
            pairs.append(other / own)
            theirs.append(other)
        ratios.append(statistics.median(pairs))
    spread = (max(theirs) - min(theirs)) / statistics.median(theirs)
    print(f"OpenMPI's values spread by {100 * spread:.1f} %", file=sys.stderr)
    outcome = "ok" if min(ratios) >= BOUND else "short"
    print(f"{ratios[0]:.2f}/{ratios[1]:.2f} {'noisy' if spread > MAX_SPREAD else outcome}")


if __name__ == "__main__":
    main()
