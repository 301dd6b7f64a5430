"""Golden data for classifiers whose texts have any number of labels: writes `multi_label`, the loss of transformers'
`multi_label_classification` on a tiny BERT of other goldens, in 64-bit floats, and figures of scikit-learn.

crates/model-center/tests/golden/README.md describes every tensor. The data are committed; run this only to change them,
in the environment of scripts/python_env.sh with one more package beside it:

    python="$(scripts/python_env.sh)"
    python3 -m pip --python "$python" install --target "$TMPDIR/packages" scikit-learn==1.9.0
    PYTHONPATH="$TMPDIR/packages" "$python" scripts/golden/make_multi_label.py            # or with --check
"""

import torch
from safetensors.torch import save_file
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score
from transformers import BertForSequenceClassification

from goldens import DEFAULT_OUT, in_64_bits, run, train

SAMPLES, LENGTH, BATCHES, LABELS = 5, 9, 3, 4
FIGURES, THRESHOLDS = 40, (0.5, 0.3)


def batch_of(vocabulary, generator):
    """Sequences of several lengths, padded on the right, with any number of labels."""
    ids = torch.randint(3, vocabulary, (SAMPLES, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(SAMPLES):
        length = int(torch.randint(2, LENGTH + 1, (1,), generator=generator))
        ids[row, length:], mask[row, length:] = 0, 0
    labels = (torch.rand((SAMPLES, LABELS), generator=generator) < 0.4).to(torch.float32)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def build():
    """BERT with a classifier of its own."""
    torch.manual_seed(907)
    model = BertForSequenceClassification.from_pretrained(
        DEFAULT_OUT / "bert_a/nsp", num_labels=LABELS, problem_type="multi_label_classification",
        attn_implementation="eager")
    torch.nn.init.normal_(model.classifier.weight, std=0.3)
    return model.train()


def output_of(model, batch):
    """Its logits, and the loss of its labels."""
    return model(**batch | {"labels": batch["labels"].double()})


def is_norm(name):
    return "LayerNorm" in name


def figures(generator):
    """Logits and labels of samples, and their figures at each threshold: F1 micro and macro, precision and recall
    macro, accuracy."""
    logits = torch.randn((FIGURES, LABELS + 1), generator=generator)
    labels = (torch.rand(logits.shape, generator=generator) < torch.sigmoid(logits)).to(torch.int64)
    # A label that no sample has, and that is not predicted.
    logits[:, LABELS], labels[:, LABELS] = -9.0, 0
    found = {"figures.logits": logits.to(torch.float32), "figures.labels": labels}
    for threshold in THRESHOLDS:
        true, predicted = labels.numpy(), (torch.sigmoid(logits) > threshold).to(torch.int64).numpy()
        values = [f1_score(true, predicted, average=average, zero_division=0.0) for average in ("micro", "macro")]
        values += [score(true, predicted, average="macro", zero_division=0.0)
                   for score in (precision_score, recall_score)]
        values.append(accuracy_score(true, predicted))
        found[f"figures.{threshold}"] = torch.tensor(values, dtype=torch.float64)
    return found


def write_all(out):
    generator = torch.Generator().manual_seed(907)
    out = out / "multi_label"
    build().to(torch.float32).save_pretrained(out)
    vocabulary = build().config.vocab_size
    batches = [batch_of(vocabulary, generator) for _ in range(BATCHES)]
    file = {f"batch.{number}.{name}": tensor for number, batch in enumerate(batches) for name, tensor in batch.items()}
    with in_64_bits():
        model = build().double()
        result = output_of(model, batches[0])
        result.loss.backward()
        file |= {"loss": result.loss, "logits": result.logits}
        file |= {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
        steps = train(build().double(), batches, is_norm, lambda model, batch: output_of(model, batch).loss)
    print(f"loss {result.loss.item():.6f}; training {steps['losses'][0]:.4f} -> {steps['losses'][-1]:.4f}")
    file |= steps | figures(generator)
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in file.items()}, out / "golden.safetensors")


if __name__ == "__main__":
    run(__doc__, write_all)
