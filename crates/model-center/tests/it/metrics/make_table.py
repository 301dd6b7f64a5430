"""Writes table.json: metrics of small random predictions as scikit-learn and scipy compute them.

Run by hand when a metric is added: pip install scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6, then
python make_table.py > table.json
"""

import json
import warnings

import numpy as np
from scipy import stats
from sklearn import metrics as sk

warnings.simplefilter("ignore")
random = np.random.default_rng(20240917)


FIGURES = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score}


def averages(names, labels, predicted):
    found = {}
    for name, figure in FIGURES.items():
        for average in names:
            key = name if average == "binary" else f"{name}_{average}"
            found[key] = float(figure(y_true=labels, y_pred=predicted, average=average, zero_division=0))
    return found


def classes(count, labels, predicted):
    # scikit-learn takes labels that occur for all labels; a figure of two classes is of class 1.
    names = ["macro", "micro", "weighted"] + (["binary"] if count == 2 else [])
    return {
        "classes": count,
        "labels": [int(x) for x in labels],
        "predicted": [int(x) for x in predicted],
        "expected": {
            "accuracy": sk.accuracy_score(labels, predicted),
            "matthews": sk.matthews_corrcoef(labels, predicted),
        } | averages(names, labels, predicted),
    }


def sets(samples, count):
    labels = (random.random((samples, count)) < 0.4).astype(int)
    predicted = np.where(random.random(labels.shape) < 0.6, labels, 1 - labels)
    # One label that never occurs.
    labels[:, -1], predicted[:, -1] = 0, 0
    return {
        "labels": labels.tolist(),
        "predicted": predicted.tolist(),
        "expected": {"accuracy": sk.accuracy_score(labels, predicted)}
        | averages(["macro", "micro", "weighted"], labels, predicted),
    }


def values(labels, predicted):
    labels, predicted = np.float32(labels), np.float32(predicted)
    wide = labels.astype(np.float64), predicted.astype(np.float64)
    return {
        "labels": [float(x) for x in labels],
        "predicted": [float(x) for x in predicted],
        "expected": {
            "pearson": float(stats.pearsonr(*wide)[0]),
            "spearman": float(stats.spearmanr(*wide)[0]),
            "mean_squared_error": float(sk.mean_squared_error(*wide)),
        },
    }


table = {"classes": [], "values": []}
for count, samples, right in [(2, 9, 0.7), (2, 40, 0.5), (3, 25, 0.6), (5, 60, 0.4), (7, 11, 0.3), (4, 8, 1.0)]:
    labels = random.integers(0, count, samples)
    predicted = np.where(random.random(samples) < right, labels, random.integers(0, count, samples))
    table["classes"].append(classes(count, labels, predicted))
table["classes"].append(classes(2, [1, 1, 0, 1], [0, 0, 0, 0]))
table["classes"].append(classes(3, [0, 0, 0], [0, 0, 0]))
table["classes"].append(classes(4, [0, 2, 2, 0], [2, 0, 2, 0]))
for samples, noise, step in [(5, 0.1, 0), (30, 1.0, 0), (30, 0.5, 0.5), (50, 3.0, 1.0)]:
    labels = random.normal(2.5, 1.0, samples)
    predicted = labels + random.normal(0, noise, samples)
    if step:
        labels, predicted = np.round(labels / step) * step, np.round(predicted / step) * step
    table["values"].append(values(labels, predicted))
table["values"].append(values([1, 2, 3], [-3, -2, -1]))
table["values"].append(values([1, 2, 3, 4], [4, 3, 2, 1]))
# After the others, whose random numbers stay the same.
table["sets"] = [sets(samples, count) for samples, count in [(1, 2), (12, 4), (40, 7)]]
lines = json.dumps(table, indent=None, separators=(",", ":"))
print(lines.replace('{"classes":', '\n{"classes":').replace('{"labels"', '\n{"labels"'))
