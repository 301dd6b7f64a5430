"""The example of docs/python.md. Arguments: a model directory, a JSONL file with `text` and `label`, an output."""

import itertools
import json
import sys

import bmtrain


def train(directory, sentences, out, steps=10):
    """Fine-tune a classifier; the loss of each step."""
    model = bmtrain.Model(directory, head="cls", labels=["negative", "positive"])
    with open(sentences, encoding="utf-8") as lines:
        data = model.dataset((json.loads(line) for line in lines), max_length=64)

    trainer = bmtrain.Trainer(model, steps=steps, lr=5e-5, schedule="linear", warmup=0.06)
    losses = []
    for batch in itertools.islice(data.batches(32), steps):
        result = trainer.step(batch)
        losses.append(result.loss)
        print(f"step {result.step} | loss {result.loss:.4f} | lr {result.lr:.2e}")

    model.save(out)
    return losses


def tune(directory, sentences, out, steps=10):
    """Train LoRA of a classifier, and save it as a PEFT directory; the loss of each step."""
    lora = {"method": "lora", "rank": 8, "alpha": 16, "targets": ["query", "value"], "dropout": 0.1}
    model = bmtrain.Model(directory, head="cls", labels=["negative", "positive"], adapter=lora)
    with open(sentences, encoding="utf-8") as lines:
        data = model.dataset((json.loads(line) for line in lines), max_length=64)

    trainer = bmtrain.Trainer(model, steps=steps, lr=3e-4, schedule="linear", warmup=0.06)
    losses = [trainer.step(batch).loss for batch in itertools.islice(data.batches(32), steps)]

    model.save(out)
    return losses


def classify(directory, texts):
    """The most probable class of each text."""
    model = bmtrain.Model(directory)
    return [found["prediction"] for found in model.predict(texts)]


if __name__ == "__main__":
    train(*sys.argv[1:4])
    print(classify(sys.argv[3], ["A warm, funny, engaging film.", "A dull and lifeless film."]))
