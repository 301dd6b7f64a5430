"""Prints the last accuracy on held-out data in a run's metrics.jsonl, in percent. Called by quickstart.sh beside it."""

import json
import sys


def main():
    path, last = sys.argv[1], None
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record.get("kind") == "eval":
                last = record["metrics"].get("accuracy", last)
    if last is None:
        sys.exit(f"error: {path}\n  reason: no evaluation has an accuracy\n"
                 "  fix: see whether the run evaluated at its end")
    print(f"{100 * last:.1f}")


if __name__ == "__main__":
    main()
