"""Golden data for PyTorch's own files: what torch.save writes, and some that must not be opened with Python.

Writes crates/model-center/tests/golden/pickles; crates/model-center/tests/golden/README.md describes every file. The
data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_pickles.py            # writes the directory
    "$python" scripts/golden/make_pickles.py --check    # compares expected.safetensors with the committed one

Files of the older kind name storages by their addresses, so those differ in bytes from run to run. The calls in the
hostile files would do no harm, and nothing here loads them.
"""

import argparse
import builtins
import os
from collections import OrderedDict

import torch
from safetensors.torch import save_file

from goldens import run


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def sample(generator, *shape):
    return torch.randn(shape, generator=generator)


def every_type(generator):
    """One tensor of each stored type, a scalar, an empty one, and one whose leading axis has length one."""
    return OrderedDict([
        ("z.f32", sample(generator, 2, 3)),
        ("f16", sample(generator, 5).half()),
        ("bf16", sample(generator, 3, 1, 2).bfloat16()),
        ("f64", sample(generator, 4).double()),
        ("i64", torch.tensor([[1, -2, 2**40]])),
        ("i32", torch.tensor([-7, 2**31 - 1], dtype=torch.int32)),
        ("i16", torch.tensor([-7, 300], dtype=torch.int16)),
        ("i8", torch.tensor([-7, 100], dtype=torch.int8)),
        ("u8", torch.tensor([7, 200], dtype=torch.uint8)),
        ("bool", torch.tensor([True, False, True])),
        ("scalar", torch.tensor(2.5)),
        ("empty", torch.zeros(0, 7)),
        ("positions", torch.arange(5).expand(1, -1)),
    ])


def views(generator):
    """Tensors that share a storage: the same view under two names, slices of it, and views that are not contiguous."""
    matrix, block = sample(generator, 4, 6), sample(generator, 2, 3, 4)
    return OrderedDict([
        ("embedding", matrix),
        ("decoder", matrix),
        ("rows", matrix[1:3]),
        ("transposed", matrix.t()),
        ("columns", matrix[:, 1:3]),
        ("stepped", matrix[::2, ::3].half()[:, :1]),
        ("permuted", block.permute(2, 0, 1).double()),
        ("permuted.view", block.permute(2, 0, 1)),
        ("overlapping", block.view(-1).as_strided((3, 4), (2, 3), 1)),
    ])


def checkpoint(generator):
    """A training checkpoint: parameters of a module under state_dict, and beside them the optimizer's tensors."""
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(sample(generator, *parameter.shape))
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    return layer, {"epoch": 3, "best": 0.25, "state_dict": layer.state_dict(), "optimizer": optimizer.state_dict(),
                   "names": ["a", "b"], "shape": torch.Size([2, 3]), "kinds": {1, 2}, "none": None}


def write_all(out):
    directory = out / "pickles"
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(29)
    types, shared = every_type(generator), views(generator)
    layer, saved = checkpoint(generator)
    parameters = OrderedDict((f"own.{name}", torch.nn.Parameter(sample(generator, 3))) for name in "ab")
    namespace = {"args": argparse.Namespace(arch="tiny", lr=[0.1], flag=True),
                 "model": OrderedDict(saved["state_dict"]),
                 "extra": {"loss": 1.5, "steps": 2**40}}
    files = {
        "types.zip.pt": (types, {}),
        "types.protocol4.pt": (types, {"pickle_protocol": 4}),
        "types.legacy.pt": (types, {"_use_new_zipfile_serialization": False}),
        "views.zip.pt": (shared, {}),
        "views.legacy.pt": (shared, {"_use_new_zipfile_serialization": False}),
        "parameters.pt": (parameters, {}),
        "checkpoint.pt": (saved, {}),
        "namespace.zip.pt": (namespace, {}),
        "namespace.legacy.pt": (namespace, {"_use_new_zipfile_serialization": False}),
        # Refused: two dictionaries of tensors, a whole module, and calls that have no place among weights.
        "ambiguous.pt": ({"model": saved["state_dict"], "module": parameters}, {}),
        "module.pt": (layer, {}),
        "hostile.system.pt": (OrderedDict(a=torch.ones(2), b=Call(os.system, "exit 7")), {}),
        "hostile.eval.pt": ({"state_dict": OrderedDict(a=torch.ones(2)), "b": Call(builtins.eval, "7")},
                            {"_use_new_zipfile_serialization": False}),
        "hostile.quiet.pt": (OrderedDict(a=torch.ones(2), b=Call(torch.nn.init.zeros_, torch.ones(2))), {}),
    }
    for name, (value, options) in files.items():
        torch.save(value, directory / name, **options)
    expected = {"types": types, "views": shared, "parameters": parameters, "checkpoint": saved["state_dict"]}
    flat = {f"{file}/{name}": tensor.detach().clone(memory_format=torch.contiguous_format)
            for file, tensors in expected.items() for name, tensor in tensors.items()}
    save_file(flat, directory / "expected.safetensors")
    print(f"pickles: {len(files)} files, {sum((directory / name).stat().st_size for name in files)} bytes")


if __name__ == "__main__":
    run(__doc__, write_all)
