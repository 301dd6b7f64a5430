"""Runs the programs of two commits on the same inputs and compares the results bit for bit. Called by same_digests.sh.

usage: same_digests.py BEFORE AFTER ROOT MINILM SENTENCES SCRATCH

BEFORE and AFTER are directories with the programs `finetune` and `generate`. Each training run ends in digests of
weights and optimizer state (the last record of metrics.jsonl); compared are these, the metrics without wall clock, and
the exported weights. Prints EQUAL/COMPARED; the comparisons go to standard error.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "claims"))

import compare_runs  # noqa: E402

COMMON = ["log.every=1", "checkpoint.minutes=0", "device.name=cpu", "device.threads=2"]
QUICKSTART = ["train.steps=60", "eval.every=20 steps", "data.eval_limit=128"]
ZERO3 = ["train.steps=12", "eval.every=6 steps", "data.eval_limit=64", "train.micro_batch_size=8", "model.dtype=bf16",
         "parallel.zero=3", "device.threads=1"]
TINY = ["train.steps=20", "train.batch_size=4", "train.micro_batch_size=2", "train.lr=1e-3", "eval.every=10 steps"]


WORDS = "the number and twice is that a of film plot good bad not very in end".split()
DIGITS = "0123456789"


def write_model(golden, target, rows):
    """A committed tiny model with a WordPiece vocabulary of as many tokens as its embedding has rows."""
    target.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(golden / "lm" / name, target / name)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *DIGITS, *(f"##{digit}" for digit in DIGITS)]
    tokens += [f"[unused{number}]" for number in range(rows - len(tokens))]
    (target / "vocab.txt").write_text("".join(token + "\n" for token in tokens))


def write_models(root, scratch):
    golden = root / "crates/model-center/tests/golden"
    for name, rows in (("gpt2", 97), ("t5", 47), ("bloom", 59)):
        write_model(golden / f"{name}_a", scratch / name, rows)


def write_texts(scratch):
    """Data of the tiny models: texts, and pairs of a text and its target."""
    for split, first, count in (("train", 0, 64), ("eval", 64, 16)):
        numbers = range(first, first + count)
        texts = ({"text": f"the number {n} and twice the number is {2 * n}"} for n in numbers)
        pairs = ({"text": f"twice {n}", "target": str(2 * n)} for n in numbers)
        for kind, records in (("texts", texts), ("pairs", pairs)):
            (scratch / f"{kind}_{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def files(scratch, kind):
    return [f"data.{split}={scratch / f'{kind}_{split}.jsonl'}" for split in ("train", "eval")]


def runs(root, minilm, sentences, scratch):
    """Name of each training run, and the arguments of finetune."""
    recipe = ["--recipe", str(root / "examples/recipes/quickstart.toml")]
    reviews = [f"model.path={minilm}", f"data.train={sentences / 'train.jsonl'}"]
    reviews.append(f"data.eval={sentences / 'heldout.jsonl'}")
    language = ["data.task=language", "data.max_length=18"]
    seq2seq = ["data.task=seq2seq", "data.max_length=16", "data.target_length=8"]
    tiny = lambda name: [f"model.path={scratch / name}", *TINY]  # noqa: E731
    return {
        "quickstart": recipe + settings(reviews + QUICKSTART),
        "zero3-bf16": ["--ranks", "2"] + recipe + settings(reviews + ZERO3),
        "gpt2": settings(tiny("gpt2") + files(scratch, "texts") + language),
        "t5": settings(tiny("t5") + files(scratch, "pairs") + seq2seq),
    }


def settings(values):
    return [word for value in values for word in ("--set", value)]


def generations(scratch):
    """Name of each generation of 100 tokens, and the arguments of generate."""
    prompt = ["--prompt", "the number 7 and", "--min-new-tokens", "100", "--max-new-tokens", "100"]
    return {
        "greedy": [scratch / "bloom", "--greedy", *prompt],
        "sampled": [scratch / "bloom", "--temperature", "0.9", "--top-k", "40", "--seed", "5", *prompt],
    }


def run(command):
    ended = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{ended.stderr.decode(errors='replace')}")
    return ended.stdout


def results(directory):
    """What a run computed: name to value, which is equal where the bits are."""
    found = {"metrics": compare_runs.metrics(directory / "metrics.jsonl")}
    for key in ("weights", "optimizer"):
        found[f"digest of {key}"] = compare_runs.last_state(directory / "metrics.jsonl", key)
    for path in sorted(directory.rglob("model*.safetensors")):
        found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def compare(name, before, after):
    """How many results of the two sides are equal, and how many there are; a missing one is different."""
    equal = 0
    names = sorted(before.keys() | after.keys())
    for key in names:
        same = before.get(key) is not None and before.get(key) == after.get(key)
        equal += same
        print(f"{'same' if same else 'DIFFERENT'}: {name}: {key}", file=sys.stderr)
    return equal, len(names)


def main(before, after, root, minilm, sentences, scratch):
    scratch = Path(scratch)
    write_models(Path(root), scratch)
    write_texts(scratch)
    equal = compared = 0
    for name, arguments in runs(Path(root), Path(minilm), Path(sentences), scratch).items():
        sides = []
        for side, programs in (("before", before), ("after", after)):
            out = scratch / f"{name}-{side}"
            print(f"{name}, {side}", file=sys.stderr)
            run([Path(programs) / "finetune", *arguments, *settings([*COMMON, f"output.dir={out}"])])
            sides.append(results(out))
        same, all_of_it = compare(name, *sides)
        equal, compared = equal + same, compared + all_of_it
    for name, arguments in generations(scratch).items():
        sides = [{"tokens": run([Path(programs) / "generate", *arguments])} for programs in (before, after)]
        same, all_of_it = compare(name, *sides)
        equal, compared = equal + same, compared + all_of_it
    print(f"{equal}/{compared}")


if __name__ == "__main__":
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    main(*sys.argv[1:])
