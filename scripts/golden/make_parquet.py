"""A Parquet file with what writers other than Rust's put into one (docs/corpus.md), written by pyarrow.

    python3 -m pip install --target /tmp/pyarrow pyarrow==26.0.1
    PYTHONPATH=/tmp/pyarrow python3 scripts/golden/make_parquet.py            # writes the directory parquet
    PYTHONPATH=/tmp/pyarrow python3 scripts/golden/make_parquet.py --check    # compares with the committed file

Three row groups, pages with checksums, texts with and without a dictionary, nulls, numbers of several types, and a list
and a structure, which are not read.
"""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import pyarrow
import pyarrow.parquet

PINNED = "26.0.1"
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/parquet"
NAME = "texts.parquet"
TEXTS = ["one", None, "two caf\u00e9\nsecond line", "", "\u4e2d\u6587 \U0001f600", "one", "six " * 40]


def write(directory):
    table = pyarrow.table({
        "text": pyarrow.array(TEXTS, pyarrow.string()),
        "large": pyarrow.array([f"large {at}" for at in range(7)], pyarrow.large_string()),
        "label": pyarrow.array(["yes", "no", "no", "yes", "no", "yes", "yes"]).dictionary_encode(),
        "id": pyarrow.array(range(-3, 4), pyarrow.int64()),
        "unsigned": pyarrow.array([2**64 - 1, 0, 1, 2, 3, 4, 5], pyarrow.uint64()),
        "score": pyarrow.array([0.1, -2.5, None, 0.0, 1e30, 3.0, 4.0], pyarrow.float32()),
        "flag": pyarrow.array([True, False, None, True, False, True, False]),
        "tags": pyarrow.array([["a"], [], None, ["b", "c"], [], [], []], pyarrow.list_(pyarrow.string())),
        "meta": pyarrow.array([{"url": f"u{at}"} for at in range(7)]),
    })
    pyarrow.parquet.write_table(
        table, directory / NAME, row_group_size=3, compression={"text": "snappy", "large": "gzip", "id": "zstd"},
        use_dictionary=["text", "label"], column_encoding={"large": "DELTA_BYTE_ARRAY"}, write_page_checksum=True,
        data_page_version="2.0", store_schema=False,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--check", action="store_true", help="compare with the committed file")
    arguments = parser.parse_args()
    if pyarrow.__version__ != PINNED:
        sys.exit(f"make_parquet.py: pyarrow is {pyarrow.__version__}, and the file is made with {PINNED}")
    if not arguments.check:
        arguments.out.mkdir(parents=True, exist_ok=True)
        write(arguments.out)
        return
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory))
        if not filecmp.cmp(Path(directory) / NAME, arguments.out / NAME, shallow=False):
            sys.exit(f"make_parquet.py: {NAME} differs")
    print(f"{NAME} is the same")


if __name__ == "__main__":
    main()
