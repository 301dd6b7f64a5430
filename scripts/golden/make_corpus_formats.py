"""Golden data for the other formats of tokenised corpora (docs/corpus.md), written by NumPy and Python's pickle.

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_corpus_formats.py            # writes the directory corpus_formats
    "$python" scripts/golden/make_corpus_formats.py --check    # compares with the committed files

Block files are written as BMTrain's build_dataset writes them, records of TensorFlow with an encoder of its own.
"""

import argparse
import filecmp
import gzip
import json
import pickle
import struct
import sys
import tempfile
import types
from pathlib import Path

import numpy

PINNED = "2.4.6"
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/corpus_formats"
MODULE = "model_center.dataset.distributed_dataset"
DOCUMENTS = [[5, 1, 9, 7], [], [2, 3, 4, 5, 6, 7, 8], [65535], [100, 127, 0, 300]]
BLOCK_BYTES = 512


class FileInfo:
    """An entry of meta.bin."""

    def __init__(self, *fields):
        self.fields = fields

    @classmethod
    def _load_from_state(cls, version, fields):
        assert version == 1
        return cls(*fields)

    def __reduce__(self):
        return FileInfo._load_from_state, (1, self.fields)


def publish():
    """Gives the class the module under which BMTrain's is pickled."""
    FileInfo.__module__ = MODULE
    parts = MODULE.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules[".".join(parts[:end])] = types.ModuleType(".".join(parts[:end]))
    sys.modules[MODULE].FileInfo = FileInfo


def objects(documents, kind):
    array = numpy.empty(len(documents), dtype=object)
    for at, document in enumerate(documents):
        array[at] = kind(document)
    return array


def write_npy(out):
    out.mkdir()
    uint16 = lambda document: numpy.array(document, dtype="<u2")
    shards = {
        "arrays.npy": objects(DOCUMENTS, uint16),
        "lists.npy": objects(DOCUMENTS[:2], list),
        "rows.npy": numpy.array([[1, 2, 3], [4, 5, 6]], dtype=">i4"),
        "one.npy": numpy.array([9, 8], dtype="<u2"),
    }
    sizes = {}
    for name, array in shards.items():
        numpy.save(out / name, array, allow_pickle=True)
        documents = [array] if array.dtype != object and array.ndim == 1 else array
        sizes[name] = sum(len(document) for document in documents)
    (out / "sizes.txt").write_text(json.dumps(sizes))


def write_block_file(path, records):
    """The number of blocks, the bytes of all pickles and the number of records."""
    blocks, block, total = [], b"", 0
    for record in records:
        if len(block) + 2 + len(record) > BLOCK_BYTES:
            blocks.append(block)
            block = b""
        assert 2 + len(record) <= BLOCK_BYTES
        block += b"\x1f" + record
        total += len(record)
    blocks.append(block)
    path.write_bytes(b"".join(block.ljust(BLOCK_BYTES, b"\0") for block in blocks))
    return len(blocks), total, len(records)


def write_blocks(out):
    out.mkdir()
    kinds = [
        lambda document: pickle.dumps(document, protocol=4),
        lambda document: pickle.dumps(tuple(document), protocol=2),
        lambda document: pickle.dumps(numpy.array(document, dtype="<u2"), protocol=4),
        lambda document: pickle.dumps(numpy.array(document, dtype="<i8"), protocol=5),
        lambda document: pickle.dumps({"text": "x", "input_ids": numpy.array(document, dtype="<i4")}, protocol=4),
        lambda document: pickle.dumps([numpy.int64(token) for token in document], protocol=4),
    ]
    files = {
        "first": [kind(document) for kind in kinds for document in DOCUMENTS],
        "hidden": [pickle.dumps([1], protocol=4)],
        "second": [pickle.dumps(document, protocol=4) for document in DOCUMENTS],
    }
    infos, start = [], 0
    for name, records in files.items():
        blocks, total, count = write_block_file(out / name, records)
        infos.append(FileInfo(name, start, start + blocks, total, count, name == "hidden"))
        start += blocks
    assert infos[0].fields[2] > 2, "several blocks"
    (out / "meta.bin").write_bytes(pickle.dumps(infos, protocol=4))


def crc32c(data):
    total = 0xFFFFFFFF
    for byte in data:
        total ^= byte
        for _ in range(8):
            total = total >> 1 ^ (0x82F63B78 if total & 1 else 0)
    return total ^ 0xFFFFFFFF


def masked(data):
    total = crc32c(data)
    return struct.pack("<I", ((total >> 15 | total << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features, packed=True):
    """A tf.train.Example; integers and floats by the type of the first value, or one by one."""
    entries = b""
    for name, values in features.items():
        if values and isinstance(values[0], float):
            each = [struct.pack("<f", value) for value in values]
            numbers, kind = field(1, b"".join(each)) if packed else b"".join(b"\x0d" + word for word in each), 2
        else:
            each = [varint(value) for value in values]
            numbers, kind = field(1, b"".join(each)) if packed else b"".join(b"\x08" + value for value in each), 3
        entries += field(1, field(1, name.encode()) + field(2, field(kind, numbers)))
    return field(1, entries)


def framed(record):
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def bert(number):
    """A record of 16 positions and 3 predictions, the last one unused."""
    ids = [101, 7, 8, 103, 102, 9 + number, 103, 102] + [0] * 8
    return {"input_ids": ids, "input_mask": [1] * 8 + [0] * 8, "segment_ids": [0] * 5 + [1] * 3 + [0] * 8,
            "masked_lm_positions": [3, 6, 0], "masked_lm_ids": [1000, 2000 + number, 0],
            "masked_lm_weights": [1.0, 1.0, 0.0], "next_sentence_labels": [number % 2]}


def write_records(out):
    out.mkdir()
    records = [example(bert(0)), example(bert(1)), example(bert(2), packed=False)]
    (out / "bert.tfrecord").write_bytes(b"".join(map(framed, records)))
    plain = b"".join(framed(example({"input_ids": document})) for document in DOCUMENTS)
    (out / "plain.tfrecord.gz").write_bytes(gzip.compress(plain, compresslevel=0, mtime=0))


def make(out):
    write_npy(out / "npy")
    write_blocks(out / "blocks")
    write_records(out / "records")
    (out / "documents.json").write_text(json.dumps(DOCUMENTS) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    arguments = parser.parse_args()
    if numpy.__version__ != PINNED:
        sys.exit(f"numpy {numpy.__version__} is installed, {PINNED} is pinned (fix: use scripts/python_env.sh)")
    publish()
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory) / "fresh"
        fresh.mkdir()
        make(fresh)
        if not arguments.check:
            for path in sorted(fresh.rglob("*")):
                target = DEFAULT_OUT / path.relative_to(fresh)
                if path.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(path.read_bytes())
            return
        names = sorted(str(path.relative_to(fresh)) for path in fresh.rglob("*") if path.is_file())
        _, wrong, missing = filecmp.cmpfiles(fresh, DEFAULT_OUT, names, shallow=False)
        if wrong or missing:
            sys.exit(f"differ: {wrong}, missing: {missing} (fix: run this script without --check)")


if __name__ == "__main__":
    main()
