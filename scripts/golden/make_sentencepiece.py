"""Golden data for tokenizers: tiny SentencePiece models of every kind that is read, and a tiny byte-level vocabulary.

Writes crates/model-center/tests/golden/tokenizers; the README.md there describes every file. The data are committed;
run this only to change them, in an environment with the packages of PINNED: scripts/python_env.sh has all but
sentencepiece.

    python3 scripts/golden/make_sentencepiece.py            # writes the directory
    python3 scripts/golden/make_sentencepiece.py --check    # recomputes it and compares with the committed files
"""

import argparse
import contextlib
import filecmp
import io
import json
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import sentencepiece
from tokenizers import ByteLevelBPETokenizer
from transformers import AlbertTokenizer, GPT2Tokenizer, MPNetTokenizer, Qwen2Tokenizer, RobertaTokenizer

PINNED = {"sentencepiece": "0.2.1", "tokenizers": "0.23.3", "transformers": "5.23.0"}
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/tokenizers"

# The training corpus: sentences without meaning, with a small and repeating vocabulary.
SUBJECTS = ["the old sailor", "a young painter", "the small ship", "my neighbour", "die alte Stadt", "ein junger Hund",
            "船长", "小猫"]
VERBS = ["watches", "paints", "remembers", "follows", "sieht", "findet", "看着", "记得"]
OBJECTS = ["the wide water", "an unhappy island", "12 lighthouses", "the harbour", "den Fluss", "ein Haus", "大海", "月亮"]
CORPUS = [f"{a} {b} {c}." for a in SUBJECTS for b in VERBS for c in OBJECTS]

# A table of replacements of our own: wide letters, a ligature, wide and unbreakable spaces, line ends, a letter with
# its mark.
REPLACEMENTS = [("Ａ", "A"), ("ａ", "a"), ("ﬁ", "fi"), ("　", " "), (" ", " "), ("\t", " "), ("\n", " "), ("é", "é"),
                ("ß", "ss")]

TEXTS = [
    "", " ", "   ", "the old sailor watches the wide water.", " the harbour", "the  harbour ", "   the   harbour   ",
    "unhappy islanders", "The Old Sailor", "12345 lighthouses", "船长看着大海", "小猫 记得 月亮。", "der Fluß", "ﬁne Ａpples",
    "wide　space no break", "tab\there\nline", "\n\n", "é é", "🚢 ahoy 🚢🚢", "a<sep>b <sep> c", "<sep>", "x▁y", "don't",
    "ÿÿ",
    "the harbour\r\nthe harbour", "zzzzzzzzzzzzzzzzzzzzzzzz", "Ωmega ∑", "<s> </s> <unk>",
]


def train(**options):
    """A model of the corpus as bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, num_threads=1, minloglevel=2, hard_vocab_limit=False,
        **options)
    return model.getvalue()


def make_models(out):
    """The models, and their ids of the texts."""
    table = out / "replacements.tsv"
    table.write_text("".join(
        "\t".join(" ".join(f"{ord(c):X}" for c in side) for side in pair) + "\n" for pair in REPLACEMENTS))
    kinds = {
        "unigram": dict(model_type="unigram", vocab_size=160, normalization_rule_tsv=table.name,
                        user_defined_symbols=["<sep>"],
                        control_symbols=["<cls>"]),
        "unigram_bytes": dict(model_type="unigram", vocab_size=400, normalization_rule_name="identity",
                              byte_fallback=True,
                              remove_extra_whitespaces=False, add_dummy_prefix=False, character_coverage=0.98),
        "pairs": dict(model_type="bpe", vocab_size=460, normalization_rule_name="identity", byte_fallback=True,
                      remove_extra_whitespaces=False, allow_whitespace_only_pieces=True),
        "pairs_trimmed": dict(model_type="bpe", vocab_size=180, normalization_rule_tsv=table.name, pad_id=3),
        "letters": dict(model_type="char", vocab_size=90, normalization_rule_name="identity"),
    }
    for name, options in kinds.items():
        # A model repeats the path of its table, which is to be the same wherever it is made.
        with contextlib.chdir(out):
            (out / f"{name}.model").write_bytes(train(**options))
        processor = sentencepiece.SentencePieceProcessor(model_file=str(out / f"{name}.model"))
        rows = [{"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))}
                for text in TEXTS]
        write_json(out / f"{name}.json", {"size": processor.vocab_size(), "texts": rows})
    table.unlink()


def rows_of(tokenizer, texts):
    """The ids of texts and of pairs of them with their special tokens, and the types of the pairs."""
    rows = [{"text": text, "ids": tokenizer(text)["input_ids"]} for text in texts]
    pairs = [{"texts": [a, b], "ids": tokenizer(a, b)["input_ids"]} for a, b in zip(texts[3:8], texts[8:13])]
    return {"texts": rows, "pairs": pairs}


def make_families(out):
    """A model with ALBERT's special tokens and a vocabulary with MPNet's, and what the two families make of them."""
    albert, mpnet = out / "albert", out / "mpnet"
    albert.mkdir()
    mpnet.mkdir()
    table = albert / "replacements.tsv"
    pairs = [("　", " "), ("\t", " "), ("\n", " "), ("\r", " "), (" ", " "), ("ａ", "a"), ("ﬁ", "fi")]
    table.write_text("".join(f"{ord(a):X}\t{' '.join(f'{ord(c):X}' for c in b)}\n" for a, b in pairs))
    with contextlib.chdir(albert):
        (albert / "spiece.model").write_bytes(train(
            model_type="unigram", vocab_size=200, normalization_rule_tsv=table.name, pad_id=0, unk_id=1, bos_id=-1,
            eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"]))
    table.unlink()
    texts = [*TEXTS, "``quoted'' word", "É À ô", "[MASK] harbour", "a [MASK]"]
    write_json(albert / "expected.json", rows_of(AlbertTokenizer.from_pretrained(albert), texts))
    kept = AlbertTokenizer.from_pretrained(albert, do_lower_case=False, keep_accents=True)
    write_json(albert / "expected_kept.json", rows_of(kept, texts))
    words = "the old sailor water harbour un ##happy is ##land ##ers a s ##e ##p [UNK] . ' e".split()
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]
    (mpnet / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabulary))
    texts = [*TEXTS, "a <mask> harbour", "a<mask>harbour", "[UNK] </s> a"]
    write_json(mpnet / "expected.json", rows_of(MPNetTokenizer.from_pretrained(mpnet), texts))


def make_bytes(out):
    """A byte-level vocabulary, and what three families make of it."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(CORPUS, vocab_size=400, show_progress=False,
                                  special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"])
    directory = out / "bytes"
    directory.mkdir()
    tokenizer.save_model(str(directory))
    families = {
        "gpt2": GPT2Tokenizer.from_pretrained(directory, unk_token="<|endoftext|>"),
        "roberta": RobertaTokenizer.from_pretrained(directory),
        "qwen2": Qwen2Tokenizer.from_pretrained(directory),
    }
    texts = [text for text in TEXTS if "<s>" not in text]
    for name, family in families.items():
        write_json(out / f"bytes_{name}.json", rows_of(family, texts))


def write_json(path, value):
    """One row a line."""
    rows = {key: value[key] for key in value if isinstance(value[key], list)}
    head = {key: value[key] for key in value if key not in rows}
    parts = [f"{json.dumps(key)}: {json.dumps(head[key])}" for key in head]
    for key, items in rows.items():
        parts.append(f"{json.dumps(key)}: [\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row
                                                            in items) + "\n]")
    path.write_text("{" + ",\n".join(parts) + "}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    check = parser.parse_args().check
    for package, expected in PINNED.items():
        if version(package) != expected:
            sys.exit(f"{package} is {version(package)}, these data are made with {expected}: pip install "
                     f"{package}=={expected}")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        make_models(out)
        make_bytes(out)
        make_families(out)
        made = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
        if check:
            other = [str(name) for name in made if not (DEFAULT_OUT / name).exists()
                     or not filecmp.cmp(out / name, DEFAULT_OUT / name, shallow=False)]
            sys.exit(f"other than committed: {', '.join(other)}" if other else 0)
        for name in made:
            (DEFAULT_OUT / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(out / name, DEFAULT_OUT / name)


if __name__ == "__main__":
    main()
