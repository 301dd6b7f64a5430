"""Files that write_pickle wrote, opened by torch.load with weights_only=True.

    python opens_pickle.py DIR

DIR has pytorch_model.bin and the same tensors in same.safetensors, as the test
what_is_written_reads_back_with_correct_rounding of hf_pickle leaves them in the directory that BMTRAIN_PICKLE_EXPORTS
names. Names in their order, types, shapes and every bit have to agree, and the checksums of the zip file to be right.
Prints the number of tensors. Runs in the environment of scripts/python_env.sh.
"""

import sys
import zipfile
from pathlib import Path

import torch
from safetensors.torch import load_file


def fail(place, reason):
    sys.exit(f"error: {place}\n  reason: {reason}\n"
             "  fix: compare crates/model-center-formats/src/formats/pickle/writer.rs with what torch.save writes")


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    directory = Path(sys.argv[1])
    path = directory / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        fail(path, f"the checksum of {damaged} is wrong")
    theirs, ours = torch.load(path, map_location="cpu", weights_only=True), load_file(directory / "same.safetensors")
    if set(theirs) != set(ours):
        fail(path, f"names differ: {sorted(set(theirs) ^ set(ours))[:5]}")
    for name, tensor in theirs.items():
        other = ours[name]
        if tensor.dtype != other.dtype or tensor.shape != other.shape:
            fail(f"{path}, tensor {name}", f"{tensor.dtype} {list(tensor.shape)} is {other.dtype} {list(other.shape)}")
        if not torch.equal(tensor.contiguous().flatten().view(torch.uint8), other.flatten().view(torch.uint8)):
            fail(f"{path}, tensor {name}", "the values differ")
    print(len(theirs))


if __name__ == "__main__":
    main()
