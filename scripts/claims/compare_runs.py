"""Compares two runs' directories byte by byte; prints `same NAME` or `different NAME` for every file.

    python3 compare_runs.py RUN_A RUN_B

All files count (weights, tokenizer, configuration, metrics, whatever else is there) but the recipe. Of metrics.jsonl
the wall-clock member `time` of each record is left out; its last record must hold the hashes of the weights and of the
optimizer's state at the end of the run, which are compared as `last-weights` and `optimizer-state`. Called by
same-bits.sh.
"""

import json
import sys
from pathlib import Path

# The recipe with all its values names the run's directory and number of threads; the lock is empty.
NOT_RESULTS = {"recipe.toml", ".lock"}


def metrics(path):
    """The records of a run without `time`, which holds all that the clock and the machine's memory decide."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    # Back to text: it shows every digit, and unlike a float a "not a number" equals itself.
    return [json.dumps({key: value for key, value in record.items() if key != "time"}) for record in records]


def last_state(path, name):
    """The hash of what a run had come to, None where it did not note one."""
    return json.loads(path.read_text(encoding="utf-8").splitlines()[-1]).get("state", {}).get(name)


def results(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file() and path.name not
            in NOT_RESULTS}


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
    for name, key in (("last-weights", "weights"), ("optimizer-state", "optimizer")):
        a, b = (last_state(run / "metrics.jsonl", key) for run in (first, second))
        print("same" if a is not None and a == b else "different", name)


if __name__ == "__main__":
    main()
