"""For the claims squad-bert and ner: data in the published formats made of a real text, and the same training in
transformers.

    token_tasks.py make TASK NOVEL DIRECTORY            # writes train and eval files; TASK is qa or ner
    token_tasks.py train TASK MODEL DIRECTORY SETTINGS  # prints the mean F1 of transformers; SETTINGS are JSON
    token_tasks.py mean METRIC LOG...                   # prints the mean of a metric at the end of these runs

F1 is in percent. A question of `qa` is a sentence of a paragraph with a name or a number replaced by "what"; the answer
is that span of the paragraph. The tags of `ner` are names (capitals within a sentence) and numbers, and the words are
in lower case.
"""

import json
import random
import re
import string
import sys
from collections import Counter
from pathlib import Path

import torch

NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+(?: [A-Z][a-z]+)*|\b\d+\b|"
                  r"\b(?:two|three|four|five|six|seven|ten|hundred)\b")


def paragraphs(novel):
    """Groups of sentences of a paragraph, of 200 to 480 characters where they fit."""
    parts = []
    for paragraph in Path(novel).read_text().split("\n\n"):
        held = ""
        for sentence in re.findall(r"[^.!?]*[.!?]+\s*", " ".join(paragraph.split())):
            if held and len(held) + len(sentence) > 480:
                parts.append(held.strip())
                held = ""
            held += sentence
        parts.append(held.strip())
    return [part for part in parts if 200 < len(part) < 500]


def parts_of(samples):
    if len(samples) < 1500:
        sys.exit(f"{len(samples)} samples, and 1500 are needed")
    return [("train", samples[:1200]), ("eval", samples[1200:1500])]


def make_qa(novel, directory):
    chance, found = random.Random(11), []
    for paragraph in paragraphs(novel):
        for sentence in re.finditer(r"[A-Z][^.!?]{30,160}[.!?]", paragraph):
            names = list(NAME.finditer(sentence[0]))
            if names:
                name = chance.choice(names)
                start = sentence.start() + name.start()
                asked = sentence[0][:name.start()] + "what" + sentence[0][name.end():-1] + "?"
                found.append((paragraph, {"id": str(len(found)), "question": asked,
                                          "answers": [{"text": name[0], "answer_start": start}]}))
    chance.shuffle(found)
    for name, part in parts_of(found):
        data = [{"title": name, "paragraphs": [{"context": context, "qas": [question]} for context, question in part]}]
        (directory / f"{name}.json").write_text(json.dumps({"version": "1.1", "data": data}))


def make_ner(novel, directory):
    chance, rows = random.Random(11), []
    for paragraph in paragraphs(novel):
        for sentence in re.finditer(r"[A-Z][^.!?]{40,200}[.!?]", paragraph):
            spans = [(m.start(), m.end(), "NUM" if m[0][0].isdigit() or m[0][0].islower() else "NAME")
                     for m in NAME.finditer(sentence[0])]
            words, tags = [], []
            for word in re.finditer(r"[A-Za-z0-9]+|[^\sA-Za-z0-9]", sentence[0]):
                inside = next((span for span in spans if span[0] <= word.start() < span[1]), None)
                words.append(word[0].lower())
                tags.append("O" if inside is None else ("B-" if word.start() == inside[0] else "I-") + inside[2])
            if spans:
                rows.append({"tokens": words, "ner_tags": tags})
    chance.shuffle(rows)
    for name, part in parts_of(rows):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


def batches(count, size, epochs, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator).tolist()
        for first in range(0, count - size + 1, size):
            yield order[first:first + size]


def fit(model, settings, seed, count, collate):
    steps = count // settings["batch_size"] * settings["epochs"]
    named = list(model.named_parameters())
    plain = [p for name, p in named if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in named if not (name.endswith("bias") or "LayerNorm" in name)]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
                                  lr=settings["lr"])
    model.train()
    for step, samples in enumerate(batches(count, settings["batch_size"], settings["epochs"], seed)):
        for group in optimizer.param_groups:
            group["lr"] = settings["lr"] * (steps - step) / steps
        loss = model(**collate(samples)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def words_of(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(predicted, reference):
    a, b = words_of(predicted), words_of(reference)
    common = sum((Counter(a) & Counter(b)).values())
    return float(a == b) if not a or not b else 2 * common / (len(a) + len(b))


def train_qa(model_directory, directory, settings, seed):
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    torch.manual_seed(seed)
    model = AutoModelForQuestionAnswering.from_pretrained(model_directory)

    def read(name):
        data = json.loads((directory / f"{name}.json").read_text())["data"][0]["paragraphs"]
        return [(p["qas"][0]["question"], p["context"], p["qas"][0]["answers"][0]) for p in data]

    def encode(rows):
        return tokenizer([q for q, _, _ in rows], [c for _, c, _ in rows], truncation="only_second", padding=True,
                         max_length=settings["max_length"], return_offsets_mapping=True, return_tensors="pt")

    rows = read("train")

    def collate(samples):
        part = [rows[i] for i in samples]
        batch = encode(part)
        offsets, starts, ends = batch.pop("offset_mapping").tolist(), [], []
        for i, (_, _, answer) in enumerate(part):
            first, last = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            inside = [t for t, kind in enumerate(batch.sequence_ids(i)) if kind == 1]
            start = [t for t in inside if offsets[i][t][0] <= first]
            end = [t for t in inside if offsets[i][t][1] >= last]
            whole = start and end
            starts.append(start[-1] if whole else 0)
            ends.append(end[0] if whole else 0)
        return dict(batch) | {"start_positions": torch.tensor(starts), "end_positions": torch.tensor(ends)}

    fit(model, settings, seed, len(rows), collate)
    scores, rows = [], read("eval")
    for question, context, answer in rows:
        batch = encode([(question, context, answer)])
        offsets = batch.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            output = model(**batch)
        best, text = None, ""
        inside = {t for t, kind in enumerate(batch.sequence_ids(0)) if kind == 1}
        for start in output.start_logits[0].argsort(descending=True)[:20].tolist():
            for end in output.end_logits[0].argsort(descending=True)[:20].tolist():
                if start in inside and end in inside and start <= end < start + 30:
                    score = (output.start_logits[0, start] + output.end_logits[0, end]).item()
                    if best is None or score > best:
                        best, text = score, context[offsets[start][0]:offsets[end][1]]
        scores.append(f1(text, answer["text"]))
    return 100 * sum(scores) / len(scores)


def spans_of(tags):
    """Entities of tags B-X and I-X: type, first and last word."""
    spans, open_span = set(), None
    for at, tag in enumerate([*tags, "O"]):
        kind = tag[2:]
        if open_span and (tag == "O" or tag[0] == "B" or kind != open_span[0]):
            spans.add((*open_span, at - 1))
            open_span = None
        if tag != "O" and open_span is None:
            open_span = (kind, at)
    return spans


def train_ner(model_directory, directory, settings, seed):
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    def read(name):
        return [json.loads(line) for line in (directory / f"{name}.jsonl").read_text().splitlines()]

    rows = read("train")
    names = sorted({tag for row in rows for tag in row["ner_tags"]})
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    torch.manual_seed(seed)
    model = AutoModelForTokenClassification.from_pretrained(model_directory, num_labels=len(names))

    def encode(part):
        batch = tokenizer([row["tokens"] for row in part], is_split_into_words=True, truncation=True, padding=True,
                          max_length=settings["max_length"], return_tensors="pt")
        labels = torch.full(batch["input_ids"].shape, -100)
        for i, row in enumerate(part):
            for at, word in enumerate(batch.word_ids(i)):
                if word is not None and word != batch.word_ids(i)[at - 1]:
                    labels[i, at] = names.index(row["ner_tags"][word])
        return dict(batch) | {"labels": labels}

    fit(model, settings, seed, len(rows), lambda samples: encode([rows[i] for i in samples]))
    right = predicted = labelled = 0
    for row in read("eval"):
        batch = encode([row])
        with torch.no_grad():
            classes = model(**batch).logits[0].argmax(-1)
        counts = batch["labels"][0] != -100
        ours, theirs = (spans_of([names[c] for c in x[counts].tolist()]) for x in (classes, batch["labels"][0]))
        right, predicted, labelled = right + len(ours & theirs), predicted + len(ours), labelled + len(theirs)
    return 200 * right / (predicted + labelled)


if __name__ == "__main__":
    what, task, *rest = sys.argv[1:]
    if what == "make":
        {"qa": make_qa, "ner": make_ner}[task](rest[0], Path(rest[1]))
    else:
        if what == "mean":
            logs = [[json.loads(line) for line in Path(log).read_text().splitlines()] for log in rest]
            scores = [100 * [r for r in log if r["kind"] == "eval"][-1]["metrics"][task] for log in logs]
        else:
            settings, train = json.loads(rest[2]), {"qa": train_qa, "ner": train_ner}[task]
            scores = [train(rest[0], Path(rest[1]), settings, seed) for seed in settings["seeds"]]
        print("scores: " + ", ".join(f"{score:.2f}" for score in scores), file=sys.stderr)
        print(f"{sum(scores) / len(scores):.2f}")
