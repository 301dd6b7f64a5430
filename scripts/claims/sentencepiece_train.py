"""Vocabularies of `tokenizer train --sentencepiece` in the reference library.

Usage: sentencepiece_train.py lines FILE COUNT
       sentencepiece_train.py agree DIR LINES IDS

`lines` prints the first COUNT lines of a text that have visible characters. `agree` prints how many LINES have the ids
of the file IDS, one line each; if that is empty, the ids of a table of the pieces between spaces.
"""

import sys
from pathlib import Path


def lines(path, count):
    left = int(count)
    # Python's own lines end at more characters than a newline.
    for line in Path(path).read_text(encoding="utf-8", errors="replace").split("\n"):
        # NUL and the piece for a space are not text to the library.
        if left and line.strip() and not set(line) & set("\0\r\u2581"):
            sys.stdout.write(line + "\n")
            left -= 1


def looked_up(table, unknown, line):
    """The pieces between spaces by the table; unknown ones that follow each other are one."""
    ids = []
    for piece in line.split(" "):
        if piece:
            found = table.get("\u2581" + piece, unknown)
            if not (found == unknown and ids[-1:] == [unknown]):
                ids.append(found)
    return ids


def agree(directory, texts, ids):
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_file=f"{directory}/tokenizer.model")
    vocab = [line.split("\t")[0] for line in Path(directory, "tokenizer.vocab").read_text().split("\n")[:-1]]
    if vocab != [library.id_to_piece(id) for id in range(library.get_piece_size())]:
        sys.exit("tokenizer.vocab is not the library's list of pieces")
    texts = Path(texts).read_text(encoding="utf-8").split("\n")[:-1]
    ours = [[int(id) for id in line.split()] for line in Path(ids).read_text().split("\n")[:-1]]
    if not ours:
        table = {piece: id for id, piece in enumerate(vocab)}
        ours = [looked_up(table, library.unk_id(), line) for line in texts]
    equal = 0
    for line, found in zip(texts, ours, strict=True):
        same = library.encode(line) == found
        if not same:
            print(f"{line[:60]!r}: {library.encode(line)[:20]} {found[:20]}", file=sys.stderr)
        equal += same
    print(f"{equal}/{len(texts)}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["lines", path, count]:
            lines(path, count)
        case ["agree", directory, texts, ids]:
            agree(directory, texts, ids)
        case _:
            sys.exit(__doc__)
