"""Writes mixed text for the claim `tokenizers`: English, code, Chinese, emoji and random characters.

    python3 mixed_text.py OUT MEGABYTES ENGLISH CHINESE ROOT

ENGLISH is a text, CHINESE a vocabulary file with a Chinese or other entry and a tab at the beginning of each line, ROOT
the repository, whose Rust sources are the code. Paragraphs of the kinds take turns, by the numbers of a fixed seed,
until there are enough bytes: the same files give the same text, and a change of the sources another one. U+2581 is
left out: SentencePiece writes it for a space, so its vocabularies decode it to one. Called by
scripts/claims/tokenizers.sh; needs the standard library only.
"""

import random
import sys
from pathlib import Path


def character(generator):
    """Any character but surrogates, U+2581 and the replacement character, a quarter of them of one byte."""
    while True:
        code = generator.choice([generator.randrange(0x80), generator.randrange(0x800), generator.randrange(0x10000),
                                 generator.randrange(0x110000)])
        if not 0xD800 <= code < 0xE000 and code not in (0x2581, 0xFFFD):
            return chr(code)


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    out, size, english, vocabulary, root = Path(sys.argv[1]), int(sys.argv[2]) * 1_000_000, *map(Path, sys.argv[3:])
    generator = random.Random(1)
    english = english.read_text(encoding="utf-8").split("\n")
    sources = sorted(root.glob("crates/*/src/**/*.rs"))
    code = [path.read_text(encoding="utf-8").replace("\u2581", "") for path in sources]
    listed = [line.split("\t")[0].strip("\u2581") for line in vocabulary.read_text(encoding="utf-8").split("\n")]
    chinese = [entry for entry in listed if entry and all("\u4e00" <= c <= "\u9fff" for c in entry)]
    emoji = [chr(code) for code in range(0x1F300, 0x1F650)]
    kinds = [
        lambda: "\n".join(english[(at := generator.randrange(len(english))):at + 40]),
        lambda: (text := generator.choice(code))[(at := generator.randrange(len(text))):at + 3000],
        lambda: "".join(generator.choice(chinese) + generator.choice(["", "", "", "，", "。"]) for _ in range(400)),
        lambda: " ".join("".join(generator.choices(emoji, k=3)) for _ in range(40)),
        lambda: "".join(character(generator) for _ in range(300)),
    ]
    parts, length = [], 0
    while length < size:
        part = generator.choices(kinds, [4, 4, 4, 1, 1])[0]() + "\n"
        parts.append(part)
        length += len(part.encode())
    out.write_bytes("".join(parts).encode()[:size].decode(errors="ignore").encode())


if __name__ == "__main__":
    main()
