"""Golden data for token files and index maps, from descriptions of the formats (docs/corpus.md) and NumPy.

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_corpus.py            # writes the directory corpus
    "$python" scripts/golden/make_corpus.py --check    # compares with the committed files
"""

import argparse
import filecmp
import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy

PINNED = "2.4.6"
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/corpus"
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}

# Documents of sequences of token ids: an empty sequence, a document without sequences, all ids within 7 bits.
DOCUMENTS = [[[5, 1, 9], [7]], [[]], [[2, 3, 4, 5, 6, 7, 8]], [], [[100, 127, 0]], [[11, 12], [13], [14, 15]]]


def flat(documents):
    """Sequences, and the first sequence of each document with their number at the end."""
    sequences, boundaries = [], [0]
    for document in documents:
        sequences += document
        boundaries.append(len(sequences))
    return sequences, boundaries


def write_mmap(prefix, documents, dtype):
    """MMIDIDX."""
    sequences, boundaries = flat(documents)
    arrays = [numpy.array(sequence, dtype=dtype) for sequence in sequences]
    prefix.with_suffix(".bin").write_bytes(b"".join(array.tobytes() for array in arrays))
    lengths = numpy.array([len(array) for array in arrays], dtype="<i4")
    starts = numpy.zeros(len(arrays), dtype="<i8")
    starts[1:] = numpy.cumsum(lengths[:-1], dtype="<i8") * numpy.dtype(dtype).itemsize
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(arrays), len(boundaries))
    tables = lengths.tobytes() + starts.tobytes() + numpy.array(boundaries, dtype="<i8").tobytes()
    prefix.with_suffix(".idx").write_bytes(header + tables)


def write_legacy(prefix, documents, dtype):
    """TNTIDX."""
    sequences, boundaries = flat(documents)
    arrays = [numpy.array(sequence, dtype=dtype) for sequence in sequences]
    prefix.with_suffix(".bin").write_bytes(b"".join(array.tobytes() for array in arrays))
    sizes = [len(array) for array in arrays]
    header = b"TNTIDX\0\0" + struct.pack("<6Q", 1, CODES[dtype], numpy.dtype(dtype).itemsize, len(arrays), len(sizes),
                                         len(boundaries))
    tables = [list(range(len(arrays) + 1)), [0, *numpy.cumsum(sizes).tolist()], sizes, boundaries]
    prefix.with_suffix(".idx").write_bytes(header + b"".join(numpy.array(t, dtype="<i8").tobytes() for t in tables))


def walk(lengths, order, length, samples):
    """Where each sample begins, one token after the other: entry of the order, offset in its document."""
    begins, entry, offset = [(0, 0)], 0, 0
    for _ in range(samples):
        left = length
        while lengths[order[entry]] - offset <= left:
            left -= lengths[order[entry]] - offset
            entry, offset = entry + 1, 0
        offset += left
        begins.append((entry, offset))
    return numpy.array(begins, dtype="<i4")


def maps(lengths, documents, samples, length, seed, apart_allowed):
    """The three index maps of these documents."""
    tokens = int(sum(lengths[document] for document in documents))
    epochs = 1
    while (epochs * tokens - 1) // length < samples:
        epochs += 1
    total, before = (epochs * tokens - 1) // length, ((epochs - 1) * tokens - 1) // length if epochs > 1 else 0
    apart = apart_allowed and epochs > 1 and samples - before < int(0.80 * ((tokens - 1) // length))
    random = numpy.random.RandomState(seed=seed)
    parts = [epochs - 1, 1] if apart else [epochs]
    order = []
    for part in parts:
        array = numpy.tile(numpy.array(documents, dtype="<i4"), part)
        random.shuffle(array)
        order.append(array)
    order = numpy.concatenate(order)
    begins = walk(lengths, order, length, total)
    bounds = [0, before, total] if apart else [0, total]
    shuffle = []
    for start, end in zip(bounds, bounds[1:]):
        array = numpy.arange(start, end, dtype="<u4")
        random.shuffle(array)
        shuffle.append(array)
    return {"doc": order, "sample": begins, "shuffle": numpy.concatenate(shuffle), "epochs": epochs, "apart": apart}


def write_maps(out):
    """A corpus of 60 documents, and maps of requests for one epoch and for several."""
    random = numpy.random.RandomState(seed=7)
    documents = [[random.randint(0, 1000, size=int(random.randint(0, 40))).tolist()] for _ in range(60)]
    documents[0] = [[]]
    write_mmap(out / "mapped", documents, "uint16")
    sequences, _ = flat(documents)
    lengths = [len(sequence) for sequence in sequences]
    cases = []
    for name, order, part, first, end, samples, length, seed in [
        ("one", "megatron", "train", 0, 60, 50, 16, 1234),
        ("apart", "megatron", "train", 0, 57, 100, 16, 1),
        ("joined", "megatron", "valid", 3, 50, 130, 16, 2),
        ("first", "megatron-v1", "train", 0, 57, 100, 16, 1),
        ("longer", "megatron", "test", 57, 60, 3, 100, 4294967295),
    ]:
        made = maps(lengths, list(range(first, end)), samples, length, seed, order == "megatron")
        (out / name).mkdir(exist_ok=True)
        for kind in ["doc", "sample", "shuffle"]:
            numpy.save(out / name / f"mapped_{part}_indexmap_{samples}ns_{length}sl_{seed}s_{kind}_idx.npy", made[kind])
        row = [token for document in made["doc"] for token in sequences[document]]
        tokens = [row[k * length:(k + 1) * length + 1] for k in made["shuffle"].tolist()]
        cases.append({"name": name, "order": order, "part": part, "documents": [first, end], "samples": samples,
                      "length": length, "seed": seed, "epochs": made["epochs"], "apart": bool(made["apart"]),
                      "first": tokens[0], "last": tokens[-1]})
    assert [case["apart"] for case in cases] == [False, True, False, False, False], cases
    (out / "maps.json").write_text(json.dumps(cases, indent=1) + "\n")


def make(out):
    for dtype in CODES:
        write_mmap(out / dtype, DOCUMENTS, dtype)
    write_mmap(out / "empty", [], "int32")
    write_legacy(out / "legacy", DOCUMENTS, "uint16")
    (out / "documents.json").write_text(json.dumps(DOCUMENTS) + "\n")
    write_maps(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    arguments = parser.parse_args()
    if numpy.__version__ != PINNED:
        sys.exit(f"numpy {numpy.__version__} is installed, {PINNED} is pinned (fix: use scripts/python_env.sh)")
    if not arguments.check:
        DEFAULT_OUT.mkdir(parents=True, exist_ok=True)
        make(DEFAULT_OUT)
        return
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        make(fresh)
        names = sorted(str(path.relative_to(fresh)) for path in fresh.rglob("*") if path.is_file())
        _, wrong, missing = filecmp.cmpfiles(fresh, DEFAULT_OUT, names, shallow=False)
        if wrong or missing:
            sys.exit(f"differ: {wrong}, missing: {missing} (fix: run this script without --check)")


if __name__ == "__main__":
    main()
