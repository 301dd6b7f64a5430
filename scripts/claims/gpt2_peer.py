"""GPT-2's tokenizer in Hugging Face's package, and files of documents, for the claims `indexed-bytes` and
`corpus-speed`."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"


def tokenizer(directory):
    """The tokenizer of a directory with vocab.json and merges.txt."""
    model = models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def texts(prose):
    """The addresses of the set prose, each a document."""
    return [path.read_text(encoding="utf-8") for path in sorted((Path(prose) / "sotu").glob("*.txt"))]


def write_lines(path, documents):
    """One JSON object for each document."""
    with open(path, "w", encoding="utf-8") as out:
        for document in documents:
            out.write(json.dumps({"text": document}) + "\n")
