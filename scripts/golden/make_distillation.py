"""Golden data for students of a teacher: writes `distillation`, the loss of tiny language models and classifiers of
other goldens that learn from the logits of another one, with three divergences, in 64-bit floats. The formula is
Hinton's: a share of the cross-entropy, and the divergence at a temperature times its square.

crates/model-center/tests/golden/README.md describes every tensor. The data are committed; run the script only to change
them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_distillation.py            # writes the directory
    "$python" scripts/golden/make_distillation.py --check    # recomputes them and compares with the committed file
"""

import math

import torch
from torch.nn.functional import cross_entropy, kl_div
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from goldens import DEFAULT_OUT, case_of, in_64_bits, run, write_cases

ROWS, LENGTH, BATCHES, CLASSES = 4, 9, 3, 3
# By case: student, teacher, divergence, temperature, and the share of the divergence. The vocabularies have 59 tokens
# (Llama) and 53 (Mistral).
CASES = {
    "smaller_teacher": ("llama_a/lm", "mistral_a/lm", "forward", 2.0, 0.7),
    "larger_teacher": ("mistral_a/untied", "llama_a/lm", "reverse", 1.0, 0.5),
    "teacher_alone": ("llama_a/lm", "llama_a/untied", "js", 1.5, 1.0),
    "classes": ("llama_a/cls", "mistral_a/cls", "forward", 2.5, 0.6),
}
SMALLEST = 53


def build(name):
    kind = AutoModelForSequenceClassification if name.endswith("cls") else AutoModelForCausalLM
    return kind.from_pretrained(DEFAULT_OUT / name, attn_implementation="eager").double().train()


def batch_of(is_classes, generator):
    """Sequences of several lengths, padded on the right; some tokens at the beginning are not learned."""
    ids = torch.randint(3, SMALLEST, (ROWS, LENGTH), generator=generator)
    mask, labels = torch.ones_like(ids), ids.clone()
    for row in range(ROWS):
        length = int(torch.randint(4, LENGTH + 1, (1,), generator=generator))
        ids[row, length:], mask[row, length:] = 0, 0
        labels[row] = torch.where(mask[row] == 1, ids[row], -100)
        labels[row, :row] = -100
    if is_classes:
        labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def logits_and_targets(model, batch):
    """Logits and targets of what counts."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"]
    if labels.dim() == 1:
        return logits, labels
    logits, labels = logits[:, :-1], labels[:, 1:]
    return logits[labels != -100], labels[labels != -100]


def divergence_of(kind, student, teacher, temperature):
    """The mean over rows, over the classes that both have, times the square of the temperature."""
    classes = min(student.shape[-1], teacher.shape[-1])
    log_q, log_p = ((logits[:, :classes] / temperature).log_softmax(-1) for logits in (student, teacher))
    if kind == "forward":
        value = kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    elif kind == "reverse":
        value = kl_div(log_p, log_q, log_target=True, reduction="batchmean")
    else:
        log_m = torch.logaddexp(log_p, log_q) - math.log(2)
        value = sum(kl_div(log_m, each, log_target=True, reduction="batchmean") for each in (log_p, log_q)) / 2
    return value * temperature**2


def outputs_of(settings, model, teacher, batch):
    """The loss and the divergence in it."""
    _, _, kind, temperature, share = settings
    logits, targets = logits_and_targets(model, batch)
    with torch.no_grad():
        given, _ = logits_and_targets(teacher, batch)
    divergence = divergence_of(kind, logits, given, temperature)
    return {"loss": (1 - share) * cross_entropy(logits, targets) + share * divergence, "divergence": divergence}


def is_norm(name):
    return "norm" in name.lower()


def write_all(out):
    generator = torch.Generator().manual_seed(839)
    cases = {}
    with in_64_bits():
        for case, settings in CASES.items():
            batches = [batch_of(case == "classes", generator) for _ in range(BATCHES)]
            teacher = build(settings[1]).eval()
            cases[case] = case_of(lambda: build(settings[0]), batches, is_norm,
                                  lambda model, batch: outputs_of(settings, model, teacher, batch))
    write_cases(out, "distillation", cases)


if __name__ == "__main__":
    run(__doc__, write_all)
