"""Golden data for metrics of texts: 200 predicted answers by torchmetrics (SQuAD), tags by seqeval, texts by
rouge-score.

Writes crates/model-center/tests/golden/metrics/expected.json. The data are committed; run this only to change them, in
the environment of scripts/python_env.sh with three more packages beside it:

    python="$(scripts/python_env.sh)"
    python3 -m pip --python "$python" install --target "$TMPDIR/packages" \\
        seqeval==1.2.2 torchmetrics==1.8.2 rouge-score==0.1.2
    PYTHONPATH="$TMPDIR/packages" "$python" scripts/golden/make_metrics.py            # or with --check
"""

import json
import random

from rouge_score.rouge_scorer import RougeScorer
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
from torchmetrics.functional.text import squad

from goldens import run

WORDS = """the a an The An film river's bank, "park" (sun) rain-bow New York 1,200 U.S. café naïve it's —
and of to I O'Neil end. ! theatre anna Panthers 24–10 Levi's® Stadium""".split()
KINDS = ["PER", "LOC", "ORG", "MISC"]


def text(chance, longest):
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(0, longest)))


def answers(chance):
    cases = []
    for _ in range(200):
        references = [text(chance, 6) or "end" for _ in range(chance.randint(1, 4))]
        other, longer = text(chance, 6), references[-1] + " " + text(chance, 2)
        predicted = chance.choice([references[0].lower(), other, longer, "the"])
        target = {"answers": {"text": references, "answer_start": [0] * len(references)}, "id": "q"}
        scores = squad([{"prediction_text": predicted, "id": "q"}], [target])
        cases.append({"text": predicted, "references": references, "exact_match": scores["exact_match"].item() / 100,
                      "token_f1": scores["f1"].item() / 100})
    return cases


def tags(chance):
    cases = []
    for _ in range(40):
        def sequences(lengths):
            prefixes = ["B-", "I-", "E-", "S-"]
            return [[chance.choice(["O", "O", chance.choice(prefixes) + chance.choice(KINDS)]) for _ in range(length)]
                    for length in lengths]
        lengths = [chance.randint(1, 12) for _ in range(5)]
        labels = sequences(lengths)
        predicted = [[tag if chance.random() < 0.7 else other for tag, other in zip(one, another)]
                     for one, another in zip(labels, sequences(lengths))]
        figures = [metric(labels, predicted) for metric in (precision_score, recall_score, f1_score, accuracy_score)]
        cases.append({"labels": labels, "predicted": predicted, "figures": [float(figure) for figure in figures]})
    return cases


def summaries(chance):
    scorer, cases = RougeScorer(["rougeL"], use_stemmer=False), []
    for _ in range(60):
        predicted, reference = text(chance, 14), text(chance, 14)
        score = scorer.score(reference, predicted)["rougeL"]
        cases.append({"text": predicted, "reference": reference,
                      "figures": [score.precision, score.recall, score.fmeasure]})
    return cases


def write(out):
    chance = random.Random(97)
    (out / "metrics").mkdir(parents=True, exist_ok=True)
    expected = {"answers": answers(chance), "tags": tags(chance), "summaries": summaries(chance)}
    (out / "metrics/expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    run(__doc__, write)
