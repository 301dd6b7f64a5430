"""Boundaries of sentences, ours and Punkt's from NLTK.

Usage: presplit.py paragraphs TEXT FILE
       presplit.py compare FILE SENTENCES

`paragraphs` writes the paragraphs of a wrapped text as JSON lines. `compare` prints the boundaries in common over
Punkt's and over ours, in percent, and where they differ to standard error.
"""

import json
import sys
from pathlib import Path


def paragraphs(path, out):
    text = Path(path).read_text(encoding="utf-8-sig").replace("\r", "")
    joined = (" ".join(block.split()) for block in text.split("\n\n"))
    Path(out).write_text("".join(json.dumps({"text": block}) + "\n" for block in joined if block))


def ends(text, sentences):
    """Where sentences end that are not the last, in characters."""
    found, at = set(), 0
    for sentence in sentences:
        at = text.index(sentence, at) + len(sentence)
        found.add(at)
    return found - {len(text)}


def compare(path, split):
    from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer

    read = lambda name: [json.loads(line)["text"] for line in Path(name).read_text().splitlines()]
    texts, ours = read(path), read(split)
    trainer = PunktTrainer()
    trainer.train("\n\n".join(texts))
    punkt = PunktSentenceTokenizer(trainer.get_params())
    both = all_ours = all_theirs = 0
    for text, lines in zip(texts, ours, strict=True):
        mine, theirs = ends(text, lines.split("\n")), ends(text, punkt.tokenize(text))
        both += len(mine & theirs)
        all_ours += len(mine)
        all_theirs += len(theirs)
        for at in sorted(mine ^ theirs):
            print("ours " if at in mine else "Punkt", repr(text[max(0, at - 40):at + 20]), file=sys.stderr)
    print(f"{100 * both / all_theirs:.1f}/{100 * both / all_ours:.1f}%")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["paragraphs", path, out]:
            paragraphs(path, out)
        case ["compare", path, split]:
            compare(path, split)
        case _:
            sys.exit(__doc__)
