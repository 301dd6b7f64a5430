"""Turns the rated movie-review sentences into two-class JSONL files, the same bytes every time.

    python3 prepare_sentences.py RATED.tsv OUT_DIR [--heldout 1000] [--seed 0]

The input has one sentence a line: id, mean rating of some twenty people from -4 to 4, text, separated by tabs, in
UTF-8. Writes OUT_DIR/train.jsonl and OUT_DIR/heldout.jsonl, one {"text": ..., "label": "positive" | "negative"} a line.
Needs the standard library only.

Cleaning: sentences rated nearer to zero than 0.5 are left out, since their readers disagreed or did not care; HTML
entities are resolved, doubled single quotes become double quotes, runs of white space become one space; of sentences
that are equal but for case and punctuation only the first is kept, so that none is in both files.

The sentences are ordered by SHA-256(seed, text): the order depends on the seed and the sentence, neither on Python's
random numbers nor on the order of the input. The first --heldout sentences are held out, the others are for training.
"""

import argparse
import hashlib
import html
import json
import os
import re
import sys
from pathlib import Path

LEAST_RATING = 0.5


def read(path):
    """Yields (rating, text) of every line; a line that is not of the expected form ends the program."""
    try:
        content = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        sys.exit(f"error: {path}\n  reason: {fault}\n  fix: run scripts/assets.sh sent")
    for number, line in enumerate(content.splitlines(), start=1):
        fields = line.split("\t")
        try:
            _, rating, text = fields
            yield float(rating), text
        except ValueError:
            sys.exit(f"error: {path}:{number}\n  reason: expected id, rating and text separated by tabs, "
                     f"found {len(fields)} fields\n  fix: run scripts/assets.sh sent")


def clean(text):
    """The sentence as a person would have typed it."""
    return " ".join(html.unescape(text).replace("''", '"').split())


def select(rated):
    """The sentences that are used, each once, as records to write."""
    seen, records = set(), []
    for rating, text in rated:
        text = clean(text)
        key = re.sub(r"\W+", " ", text.casefold()).strip()
        if abs(rating) < LEAST_RATING or not key or key in seen:
            continue
        seen.add(key)
        records.append({"text": text, "label": "positive" if rating > 0 else "negative"})
    return records


def shuffled(records, seed):
    return sorted(records, key=lambda record: hashlib.sha256(f"{seed}\n{record['text']}".encode()).digest())


def write(path, records):
    """Writes the file beside its place and renames it, so that it is never there half-written."""
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    os.replace(part, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rated", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--heldout", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    records = shuffled(select(read(arguments.rated)), arguments.seed)
    if not 0 < arguments.heldout < len(records):
        sys.exit(f"error: --heldout {arguments.heldout}\n  reason: there are {len(records)} sentences\n"
                 "  fix: hold out at least one and fewer than all")
    heldout, train = records[: arguments.heldout], records[arguments.heldout :]
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        write(arguments.out / "train.jsonl", train)
        write(arguments.out / "heldout.jsonl", heldout)
    except OSError as fault:
        sys.exit(f"error: {arguments.out}\n  reason: {fault}\n  fix: name a directory that can be written to")
    for name, part in (("train", train), ("heldout", heldout)):
        positive = sum(record["label"] == "positive" for record in part)
        print(f"{name}: {len(part)} sentences, {100 * positive / len(part):.1f} % positive", file=sys.stderr)


if __name__ == "__main__":
    main()
