"""Compares token files and index maps with megatron-core's, for the claim `indexed-bytes`.

    python indexed_bytes.py PROGRAM SCRATCH PROSE TOKENIZER

PROGRAM is `corpus`. Prints how many files and maps are equal, of all; what differs goes to stderr. Needs the packages
of scripts/python_env.sh and scripts/corpus_env.sh.
"""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy
import torch

import gpt2_peer

warnings.filterwarnings("ignore")

from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder  # noqa: E402

DTYPES = [numpy.uint8, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint16]
# Sequence length, samples of each part, seed: one epoch, several with the last apart and together, long samples.
MAPS = [(64, (2000, 100, 2), 1234), (64, (7200, 400, 10), 1), (64, (6500, 340, 9), 2), (1000, (900, 25, 2), 4294967295)]


class Vocabulary:
    """All that megatron-core's index maps ask of a tokenizer."""

    unique_identifiers = {"class": "Vocabulary"}
    vocab_size = 1000
    eod = 0
    pad = 0


class Count:
    def __init__(self):
        self.equal, self.all = 0, 0

    def check(self, what, is_equal):
        self.equal += bool(is_equal)
        self.all += 1
        if not is_equal:
            print(f"differs: {what}", file=sys.stderr)

    def files(self, what, ours, theirs):
        for ending in [".bin", ".idx"]:
            read = [Path(f"{prefix}{ending}").read_bytes() for prefix in (ours, theirs)]
            self.check(f"{what}{ending}", read[0] == read[1])


def write(prefix, documents, dtype):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def random_documents(generator, dtype, count):
    """Documents of sequences; some of both are empty."""
    most = min(numpy.iinfo(dtype).max, 2**31 - 1)
    sequence = lambda: generator.randint(0, most + 1, size=generator.randint(0, 60)).tolist()
    return [[sequence() for _ in range(generator.randint(0, 4))] for _ in range(count)]


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    program, scratch, prose, vocabulary = sys.argv[1], *map(Path, sys.argv[2:])
    count, generator = Count(), numpy.random.RandomState(7)
    corpus = lambda *arguments: subprocess.run([program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    documents, tokenizer = gpt2_peer.texts(prose), gpt2_peer.tokenizer(vocabulary)
    end = tokenizer.token_to_id(gpt2_peer.END_OF_TEXT)
    gpt2_peer.write_lines(scratch / "texts.jsonl", documents)
    whole = [[tokenizer.encode(text, add_special_tokens=False).ids + [end]] for text in documents]
    lines = []
    for text in documents:
        kept = [line for line in text.split("\n") if line.strip()]
        lines.append([encoding.ids for encoding in tokenizer.encode_batch(kept, add_special_tokens=False)])
        lines[-1][-1] = lines[-1][-1] + [end]
    for name, made, dtype, options in [
        ("whole", whole, numpy.uint16, []),
        ("wide", whole, numpy.int32, ["--dtype", "int32"]),
        ("lines", lines, numpy.uint16, ["--split-lines"]),
    ]:
        write(scratch / f"theirs_{name}", made, dtype)
        corpus("build", scratch / "texts.jsonl", "--tokenizer", vocabulary, "--eod-token", gpt2_peer.END_OF_TEXT,
               "--out", scratch / f"ours_{name}", "--quiet", *options)
        count.files(f"texts, {name}", scratch / f"ours_{name}", scratch / f"theirs_{name}")

    for dtype in DTYPES:
        name = numpy.dtype(dtype).name
        parts = [random_documents(generator, dtype, size) for size in (50, 0, 31)]
        for number, part in enumerate(parts):
            write(scratch / f"{name}_{number}", part, dtype)
        # Read by ours and written again, and what megatron-core reads of that.
        corpus("convert", scratch / f"{name}_0", scratch / f"{name}_ours", "--to", "megatron", "--quiet")
        count.files(f"ids, {name}", scratch / f"{name}_ours", scratch / f"{name}_0")
        read = IndexedDataset(str(scratch / f"{name}_ours"))
        flat = [sequence for document in parts[0] for sequence in document]
        same = len(read) == len(flat) and all(read[at].tolist() == sequence for at, sequence in enumerate(flat))
        count.check(f"ids that megatron-core reads, {name}", same)
        merged = IndexedDatasetBuilder(str(scratch / f"{name}_theirs.bin"), dtype=dtype)
        for number in range(3):
            merged.add_index(str(scratch / f"{name}_{number}"))
        merged.finalize(str(scratch / f"{name}_theirs.idx"))
        corpus("merge", *[scratch / f"{name}_{number}" for number in range(3)], "--out", scratch / f"{name}_merged",
               "--quiet")
        count.files(f"merged, {name}", scratch / f"{name}_merged", scratch / f"{name}_theirs")

    mapped = scratch / "mapped"
    write(mapped, [[generator.randint(0, 1000, size=generator.randint(1, 150)).tolist()] for _ in range(3000)],
          numpy.uint16)
    for length, samples, seed in MAPS:
        config = GPTDatasetConfig(
            random_seed=seed, sequence_length=length, blend=([str(mapped)], None), split="949,50,1",
            path_to_cache=str(scratch / "cache"), tokenizer=Vocabulary(), reset_position_ids=False,
            reset_attention_mask=False, eod_mask_loss=False)
        sets = BlendedMegatronDatasetBuilder(GPTDataset, list(samples), lambda: True, config).build()
        for part, wanted, theirs in zip(["train", "valid", "test"], samples, sets):
            corpus("maps", mapped, "--sequence-length", length, "--samples", wanted, "--seed", seed, "--part", part,
                   "--split", "949,50,1", "--order", "megatron", "--out", scratch)
            base = scratch / f"mapped_{part}_indexmap_{wanted}ns_{length}sl_{seed}s"
            for kind, array in [("doc", theirs.document_index), ("sample", theirs.sample_index),
                                ("shuffle", theirs.shuffle_index)]:
                ours = numpy.load(f"{base}_{kind}_idx.npy")
                same = ours.dtype == array.dtype and numpy.array_equal(ours, array)
                count.check(f"{kind} map of {part}, length {length}", same)
    print(f"{count.equal}/{count.all}")


if __name__ == "__main__":
    main()
