"""The verdict of the claim loss-bf16 on the runs that it left in a directory.

    python loss_bf16.py ID DIR

DIR has minilm-f32, minilm-bf16, gpt2-f32 and gpt2-bf16. The last line on stdout is `ID FIGURE ok|short`, exit status 0
or 1: for each model the loss on held-out data in f32 -> in bf16, for MiniLM accuracies too.
"""

import json
import sys
from pathlib import Path

from speed import verdict

WITHIN, POINTS = 0.01, 0.01


def last_evaluation(run):
    """The metrics of a run's last evaluation."""
    with open(run / "metrics.jsonl", encoding="utf-8") as lines:
        evaluations = [record["metrics"] for record in map(json.loads, lines) if record.get("kind") == "eval"]
    if not evaluations:
        sys.exit(f"error: {run}\n  reason: it has no evaluation\n  fix: see whether the run reached its end")
    return evaluations[-1]


def main():
    name, directory = sys.argv[1], Path(sys.argv[2])
    figures, ok = [], True
    for model in ("minilm", "gpt2"):
        f32, bf16 = (last_evaluation(directory / f"{model}-{dtype}") for dtype in ("f32", "bf16"))
        ok &= abs(bf16["loss"] / f32["loss"] - 1) <= WITHIN
        figure = f"{model}={f32['loss']:.4f}->{bf16['loss']:.4f}"
        if "accuracy" in f32:
            ok &= abs(bf16["accuracy"] - f32["accuracy"]) <= POINTS
            figure += f"/{f32['accuracy']:.3f}->{bf16['accuracy']:.3f}"
        figures.append(figure)
    verdict(f"{name} {','.join(figures)}", "ok" if ok else "short")


if __name__ == "__main__":
    main()
