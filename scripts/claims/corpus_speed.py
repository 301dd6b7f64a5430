"""Times building token files and index maps, for the claim `corpus-speed`.

    python corpus_speed.py PROGRAM SCRATCH PROSE TOKENIZER [--megabytes 200] [--documents 100000000] [--rounds 3]

PROGRAM is `corpus`. Prints the four figures of the claim. Both sides use as many processes or threads as there are
processors, take turns, and the medians count. Needs the packages of scripts/python_env.sh and scripts/corpus_env.sh.
"""

import argparse
import filecmp
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROCESSORS = len(os.sched_getaffinity(0))


def measured(command, **options):
    """Seconds and peak memory in MB of a command."""
    begun = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, **options)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begun
    if status != 0:
        sys.exit(f"{command[0]} ended with status {status}")
    return seconds, usage.ru_maxrss * 1024 / 1e6


def make_texts(out, prose, megabytes):
    """The addresses over and over, up to this size."""
    import gpt2_peer

    documents, wanted = gpt2_peer.texts(prose), int(megabytes * 1e6)
    chosen, size = [], 0
    while size < wanted:
        document = documents[len(chosen) % len(documents)]
        chosen.append(document)
        size += len(document.encode())
    gpt2_peer.write_lines(out, chosen)
    print(size)


def make_index(prefix, count):
    """A token file of documents of 1 to 199 tokens; the tokens are a hole in the file."""
    import struct

    import numpy

    piece, generator, start = 1_000_000, numpy.random.Generator(numpy.random.PCG64(5)), 0
    pieces = [min(piece, count - first) for first in range(0, count, piece)]
    with open(f"{prefix}.idx", "wb") as out, open(f"{prefix}.starts", "w+b") as starts:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        for size in pieces:
            lengths = generator.integers(1, 200, size=size, dtype=numpy.int32)
            out.write(lengths.tobytes())
            ends = start + 2 * numpy.cumsum(lengths, dtype=numpy.int64)
            starts.write(numpy.concatenate([[start], ends[:-1]]).astype("<i8").tobytes())
            start = int(ends[-1])
        starts.seek(0)
        while block := starts.read(1 << 24):
            out.write(block)
        first = 0
        for size in pieces:
            out.write(numpy.arange(first, first + size, dtype="<i8").tobytes())
            first += size
        out.write(struct.pack("<q", count))
    os.unlink(f"{prefix}.starts")
    with open(f"{prefix}.bin", "wb") as out:
        out.truncate(start)


def peer(texts, vocabulary, prefix):
    """Megatron-LM's way to build a token file: processes tokenise, and this one writes."""
    import json
    import multiprocessing

    import numpy

    import gpt2_peer
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    global encode

    def encode(line):
        return tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids + [end]

    tokenizer = gpt2_peer.tokenizer(Path(vocabulary))
    end = tokenizer.token_to_id(gpt2_peer.END_OF_TEXT)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    with multiprocessing.get_context("fork").Pool(PROCESSORS) as pool, open(texts, encoding="utf-8") as lines:
        for ids in pool.imap(encode, lines, 32):
            builder.add_document(ids, [len(ids)])
    builder.finalize(f"{prefix}.idx")


def measure(arguments):
    program, vocabulary, scratch = arguments.program, arguments.tokenizer, Path(arguments.scratch)
    note = lambda text: print(text, file=sys.stderr, flush=True)
    python = lambda *words: [sys.executable, __file__, *words]
    texts = scratch / "texts.jsonl"
    made = subprocess.run(python("texts", texts, arguments.prose, str(arguments.megabytes)), check=True,
                          capture_output=True, text=True)
    megabytes = int(made.stdout) / 1e6
    single = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    build = lambda files, out: [program, "build", *files, "--tokenizer", vocabulary, "--eod-token", "<|endoftext|>",
                                "--threads", PROCESSORS, "--out", out, "--quiet"]

    def remove(*prefixes):
        for prefix in prefixes:
            for ending in [".bin", ".idx"]:
                Path(f"{prefix}{ending}").unlink(missing_ok=True)

    ours, theirs = scratch / "ours", scratch / "theirs"
    times = {"ours": [], "theirs": []}
    for round_number in range(arguments.rounds):
        remove(ours, theirs)
        times["theirs"].append(measured(python("peer", texts, vocabulary, theirs), env=single)[0])
        times["ours"].append(measured(build([texts], ours))[0])
        rates = ", ".join(f"{name} {megabytes / each[-1]:.1f} MB/s" for name, each in times.items())
        note(f"round {round_number + 1}: {rates}")
    for ending in [".bin", ".idx"]:
        if not filecmp.cmp(f"{ours}{ending}", f"{theirs}{ending}", shallow=False):
            sys.exit(f"the files {ending} differ")
    remove(ours, theirs)
    ratio = statistics.median(times["theirs"]) / statistics.median(times["ours"])
    seconds, build_memory = measured(build([texts] * 10, scratch / "large"))
    note(f"{10 * megabytes:.0f} MB: {10 * megabytes / seconds:.1f} MB/s, {build_memory:.0f} MB of memory")
    remove(scratch / "large")
    texts.unlink()

    subprocess.run(python("index", scratch / "many", str(arguments.documents)), check=True)
    seconds, maps_memory = measured([program, "maps", scratch / "many", "--sequence-length", "1024", "--split", "1"])
    note(f"maps of {arguments.documents} documents: {seconds:.1f} s, {maps_memory:.0f} MB of memory")
    print(f"{ratio:.2f}x,{build_memory:.0f}MB,{seconds:.1f}s,{maps_memory:.0f}MB")


def main():
    tasks = {"texts": lambda out, prose, size: make_texts(out, prose, float(size)), "peer": peer,
             "index": lambda prefix, count: make_index(prefix, int(count))}
    if len(sys.argv) > 1 and sys.argv[1] in tasks:
        tasks[sys.argv[1]](*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["program", "scratch", "prose", "tokenizer"]:
        parser.add_argument(name)
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
