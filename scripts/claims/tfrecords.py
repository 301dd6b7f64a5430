"""Compares files of records with the package tfrecord, for the claim `tfrecords`.

    python tfrecords.py PROGRAM SCRATCH

PROGRAM is `corpus`. Prints how many comparisons agree, of all; what differs goes to stderr. Needs the packages of
scripts/python_env.sh and scripts/corpus_env.sh.
"""

import gzip
import struct
import subprocess
import sys
from pathlib import Path

import crc32c
import numpy
import tfrecord

KINDS = {"input_ids": "int", "input_mask": "int", "segment_ids": "int", "masked_lm_positions": "int",
         "masked_lm_ids": "int", "masked_lm_weights": "float", "next_sentence_labels": "int"}


def bert_record(generator):
    """A record as BERT's create_pretraining_data writes it, of 128 positions and 20 predictions; and the ids before."""
    used, predicted = generator.randint(20, 129), generator.randint(1, 20)
    ids = generator.randint(1, 30_000, size=used)
    masked = ids.copy()
    positions = numpy.sort(generator.choice(used, size=predicted, replace=False))
    masked[positions] = 103
    pad = lambda values, length: [*values, *[0] * (length - len(values))]
    return {
        "input_ids": pad(masked.tolist(), 128),
        "input_mask": pad([1] * used, 128),
        "segment_ids": pad([0] * (used // 2) + [1] * (used - used // 2), 128),
        "masked_lm_positions": pad(positions.tolist(), 20),
        "masked_lm_ids": pad(ids[positions].tolist(), 20),
        "masked_lm_weights": pad([1.0] * predicted, 20),
        "next_sentence_labels": [int(generator.randint(0, 2))],
    }, ids.tolist()


def read(path):
    """Records by the package, their values as lists."""
    compression = "gzip" if str(path).endswith(".gz") else None
    loader = tfrecord.tfrecord_loader(str(path), None, None, compression_type=compression)
    return [{name: numpy.asarray(values).tolist() for name, values in record.items()} for record in loader]


def checksums_fit(path):
    """Whether every length and record has its checksum; the package's reader skips them."""
    data = path.read_bytes()
    data = gzip.decompress(data) if str(path).endswith(".gz") else data
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        for start, end in [(at, at + 8), (at + 12, at + 12 + length)]:
            total = crc32c.crc32c(data[start:end])
            masked = ((total >> 15 | total << 17) + 0xA282EAD8) & 0xFFFFFFFF
            if struct.unpack_from("<I", data, end) != (masked,):
                return False
        at += 16 + length
    return at == len(data)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, scratch = sys.argv[1], Path(sys.argv[2])
    generator, agreed, compared = numpy.random.RandomState(3), 0, 0
    corpus = lambda *arguments: subprocess.run([program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    def check(what, is_equal):
        nonlocal agreed, compared
        agreed, compared = agreed + bool(is_equal), compared + 1
        if not is_equal:
            print(f"differs: {what}", file=sys.stderr)

    pairs = [bert_record(generator) for _ in range(500)]
    records, documents = [record for record, _ in pairs], [ids for _, ids in pairs]
    theirs = scratch / "theirs.tfrecord"
    writer = tfrecord.TFRecordWriter(str(theirs))
    for record in records:
        writer.write({name: (values, KINDS[name]) for name, values in record.items()})
    writer.close()
    packed = scratch / "theirs.tfrecord.gz"
    packed.write_bytes(gzip.compress(theirs.read_bytes()))

    for source in [theirs, packed]:
        # What ours reads: the tokens before masking, as arrays of NumPy.
        arrays = scratch / f"{source.name}.npy_shards"
        corpus("convert", source, arrays, "--to", "npy", "--quiet")
        found = numpy.load(arrays / "Data16-0.npy", allow_pickle=True)
        check(f"ids of {source.name}", [document.tolist() for document in found] == documents)
        for ending in [".tfrecord", ".tfrecord.gz"]:
            ours = scratch / f"ours_{source.name}{ending}"
            corpus("convert", source, ours, "--to", "tfrecord", "--quiet")
            check(f"records of {ours.name}", read(ours) == records)
            check(f"checksums of {ours.name}", checksums_fit(ours))
    # From a token file, with the ids alone.
    corpus("convert", theirs, scratch / "c", "--to", "megatron", "--quiet")
    for ending in [".tfrecord", ".tfrecord.gz"]:
        corpus("convert", scratch / "c", scratch / f"ids{ending}", "--to", "tfrecord", "--quiet")
        check(f"ids{ending}", [record["input_ids"] for record in read(scratch / f"ids{ending}")] == documents)
        check(f"checksums of ids{ending}", checksums_fit(scratch / f"ids{ending}"))
    print(f"{agreed}/{compared}")


if __name__ == "__main__":
    main()
