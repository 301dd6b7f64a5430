"""Compares two runs' folders byte by byte; prints `same NAME` or `different NAME` for every file.

    python3 compare_runs.py RUN_A RUN_B

All files count (weights, optimizer state, tokenizer, configuration, metrics) but recipes and logs, which name the run's
folder and number of threads. In metrics.jsonl the wall-clock fields are left out. Called by same-bits.sh.
"""

import json
import sys
from pathlib import Path

# Time, what is derived from it, and memory, which depends on the machine's state and the number of threads.
WALL_CLOCK = {"time", "timestamp", "seconds", "elapsed", "eta", "tokens_per_second", "samples_per_second", "tokens_per_s",
              "samples_per_s", "peak_share", "share_of_peak", "memory", "peak_memory", "memory_bytes", "peak_memory_bytes",
              "resident_bytes", "peak_resident_bytes", "step_seconds", "eval_seconds", "seconds_left"}
# These say where and on how many threads a run was made.
NOT_RESULTS = (".toml", ".log", ".lock")


def without_clock(value):
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in WALL_CLOCK}
    return value


def metrics(path):
    """The records of a run without wall-clock fields, as text that shows every digit."""
    return [json.dumps(without_clock(json.loads(line))) for line in path.read_text(encoding="utf-8").splitlines()]


def results(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix not in NOT_RESULTS}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    first, second = Path(sys.argv[1]), Path(sys.argv[2])
    for name in sorted(results(first) | results(second)):
        a, b = first / name, second / name
        if not (a.is_file() and b.is_file()):
            same = False
        elif a.suffix == ".jsonl":
            same = metrics(a) == metrics(b)
        else:
            same = a.read_bytes() == b.read_bytes()
        print("same" if same else "different", name)


if __name__ == "__main__":
    main()
