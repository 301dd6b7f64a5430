"""Golden data for records of Arrow and Parquet files (docs/recipes.md), written by datasets and pyarrow.

Writes crates/model-center/tests/golden/records; crates/model-center/tests/golden/README.md describes it. The data are
committed; run this only to change them, in an environment with pyarrow 26.0.1 and datasets 5.2.0:

    python scripts/golden/make_records.py            # writes the directory
    python scripts/golden/make_records.py --check    # reads every file with the libraries and compares the rows

rows.jsonl has the rows as Python has them; every file has the same ones.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/records"
VERSIONS = {"pyarrow": "26.0.1", "datasets": "5.2.0"}

MESSAGES = [
    [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}],
    [{"role": "user", "content": None}, {"role": "assistant", "content": "caf\u00e9 \u4e2d\U0001f600"}],
    [],
    None,
    [{"role": "system", "content": ""}, {"role": "user", "content": "d" * 40}, {"role": "assistant", "content": "e"}],
    [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "f"}],
    [None, {"role": "assistant", "content": "g"}],
]
ROWS = len(MESSAGES)
MESSAGE = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
DEEP = [[[1], []], None, [], [None, [2, None]], [[3]], [[], []], [[4, 5, 6]]]
TEXTS = ["one", "two caf\u00e9\nsecond line", "", "\u4e2d\u6587 \U0001f600", "one", "six " * 10, "seven"]


def table():
    """Columns of every kind that has a value in JSON."""
    columns = {
        "text": pa.array(TEXTS, pa.string()),
        "large": pa.array([f"large {at}" if at % 3 else None for at in range(ROWS)], pa.large_string()),
        "messages": pa.array(MESSAGES, MESSAGE),
        "label": pa.array(["yes", "no", None, "yes", "no", "yes", "yes"]).dictionary_encode(),
        "tiny": pa.array([-128, 127, None, 0, 1, 2, 3], pa.int8()),
        "whole": pa.array([-(2**63), 2**63 - 1, 0, None, 1, 2, 3], pa.int64()),
        "unsigned": pa.array([2**64 - 1, 0, 1, 2, 3, 4, 5], pa.uint64()),
        "score": pa.array([0.5, -2.5, None, 0.0, 1e30, 3.0, 4.0], pa.float32()),
        "exact": pa.array([0.1, -1e-300, None, 0.0, 1e300, 3.0, 4.0], pa.float64()),
        "flag": pa.array([True, False, None, True, False, True, False]),
        "nothing": pa.nulls(ROWS),
        "tags": pa.array([["a"], [], None, ["b", None], [], [], ["c", "d", "e"]], pa.list_(pa.string())),
        "deep": pa.array(DEEP, pa.list_(pa.list_(pa.int32()))),
        "meta": pa.array([{"url": f"u{at}", "size": {"w": at, "ok": at % 2 == 0}} if at != 4 else None
                          for at in range(7)]),
    }
    return pa.table(columns)


def further(base):
    """The same rows in types that only Arrow has."""
    cut = lambda name, to: base[name].combine_chunks().cast(to)
    pairs = pa.array([[at, -at] if at != 2 else None for at in range(ROWS)], pa.list_(pa.int16(), 2))
    short_and_long = pa.array(["a", "b" * 20, None, "", "c" * 13, "d" * 12, "e"], pa.string())
    starts, sizes = pa.array([4, 0, 0, 2, 1, 0, 3], pa.int32()), pa.array([2, 1, 0, 2, 3, 5, 0], pa.int32())
    views = pa.ListViewArray.from_arrays(starts, sizes, pa.array(range(6), pa.int64()))
    return pa.table({
        "text": cut("text", pa.string_view()), "half": pa.array([0.5, -2.0, None, 0.0, 1.5, 3.0, 4.0], pa.float16()),
        "pair": pairs, "word": short_and_long.cast(pa.string_view()), "view": views,
        "large": pa.array([["x"], [], None, ["y", "z"], [], [], ["w"]], pa.large_list(pa.large_string())),
        "label": pa.array(["yes", "no", None, "yes", "no", "yes", "yes"], pa.large_string()).dictionary_encode(),
    })


def saved():
    """What datasets saves: its features, among them JSON of any form and names of classes."""
    base = table().select(["text", "messages", "whole", "flag", "tags", "meta"])
    anything = [{"a": 1}, [1, "b"], "text", None, {"c": {"d": [2.5]}}, True, {}]
    features = datasets.Features({**datasets.Features.from_arrow_schema(base.schema), "json": datasets.Json(),
                                  "class": datasets.ClassLabel(names=["no", "yes"])})
    columns = {**base.to_pydict(), "json": anything, "class": [1, 0, 1, 1, 0, 0, 1]}
    return datasets.Dataset.from_dict(columns, features=features)


def write(out):
    base = table()
    with pa.ipc.new_stream(out / "stream.arrow", base.schema) as writer:
        writer.write_table(base, max_chunksize=3)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(out / "zstd.arrow", base.schema, options=options) as writer:
        writer.write_table(base, max_chunksize=4)
    pyarrow.feather.write_feather(base, out / "lz4.feather", compression="lz4")
    pyarrow.feather.write_feather(further(base), out / "further.feather", compression="uncompressed")
    unread = {"image": pa.array([b"x"] * ROWS), "when": pa.array(range(ROWS), pa.timestamp("ms"))}
    inside = {"parts": pa.array([[{"text": "a", "image": b"x"}]] * ROWS)}
    with pa.ipc.new_stream(out / "unread.arrow", pa.table({"text": base["text"], **unread, **inside}).schema) as writer:
        writer.write_table(pa.table({"text": base["text"], **unread, **inside}))
    for name, version in [("v1.parquet", "1.0"), ("v2.parquet", "2.0")]:
        pyarrow.parquet.write_table(base, out / name, row_group_size=5, data_page_version=version, data_page_size=16,
                                    write_batch_size=1, compression="snappy" if version == "1.0" else "zstd")
    saved().save_to_disk(str(out / "saved"), num_shards=2)
    datasets.DatasetDict({"train_sft": saved().select(range(2))}).save_to_disk(str(out / "dictionary"))


def read(out):
    """The rows of every file, by name, as the libraries read them."""
    stream = pa.ipc.open_stream(out / "stream.arrow").read_all()
    file = pa.ipc.open_file(out / "zstd.arrow").read_all()
    feather = lambda name: pyarrow.feather.read_table(out / name)
    parquet = lambda name: pyarrow.parquet.read_table(out / name)
    found = {"stream.arrow": stream, "zstd.arrow": file, "lz4.feather": feather("lz4.feather"),
             "v1.parquet": parquet("v1.parquet"), "v2.parquet": parquet("v2.parquet"),
             "further.feather": feather("further.feather")}
    rows = {name: held.to_pylist() for name, held in found.items()}
    return {**rows, "saved": list(datasets.load_from_disk(str(out / "saved")))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    arguments = parser.parse_args()
    for module in (pa, datasets):
        if module.__version__ != VERSIONS[module.__name__]:
            sys.exit(f"make_records.py: {module.__name__} is {module.__version__}, not {VERSIONS[module.__name__]}")
    datasets.disable_progress_bars()
    lines = lambda rows: "".join(json.dumps(row) + "\n" for row in rows)
    expected = {
        "rows.jsonl": table().to_pylist(), "further.jsonl": further(table()).to_pylist(), "saved.jsonl": list(saved()),
    }
    if not arguments.check:
        with tempfile.TemporaryDirectory() as directory:
            write(Path(directory))
            shutil.rmtree(arguments.out, ignore_errors=True)
            shutil.copytree(directory, arguments.out)
        for name, rows in expected.items():
            (arguments.out / name).write_text(lines(rows))
    for name, rows in read(arguments.out).items():
        of = {"further.feather": "further.jsonl", "saved": "saved.jsonl"}.get(name, "rows.jsonl")
        if lines(rows) != (arguments.out / of).read_text() or rows != expected[of]:
            sys.exit(f"make_records.py: {name} has other rows")
    print("every file has the rows of its list")


if __name__ == "__main__":
    main()
