"""Golden data for checkpoints of torch.distributed.checkpoint, as FSDP2 and its users write them, on the CPU.

Writes crates/model-center/tests/golden/distributed; crates/model-center/tests/golden/README.md describes it. The data
are committed; run this only to change them, in an environment with torch 2.15.0 and safetensors 0.8.0:

    python scripts/golden/make_distributed.py            # writes the directory
    python scripts/golden/make_distributed.py --check    # loads every checkpoint with PyTorch and compares

Names of keys, dtypes and the ways tensors are divided differ; `llama` has the weights of llama_a/lm.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

GOLDEN = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden"
PINNED = "2.15.0"


def llama():
    return load_file(GOLDEN / "llama_a/lm/model.safetensors")


def mixed():
    """Tensors of several dtypes and shapes."""
    generator = torch.Generator().manual_seed(3)
    random = lambda *shape: torch.randn(*shape, generator=generator)
    return {
        "grid": random(5, 7),
        "half": random(3, 4).half(),
        "bfloat": random(2, 3, 4).bfloat16(),
        "columns": random(4, 6).bfloat16(),
        "transposed": random(3, 5).t(),
        "count": torch.arange(6).reshape(2, 3),
        "scalar": torch.tensor(2.5),
        "few": random(1, 3),
    }


def divided(name, tensor, mesh):
    """As a tensor-parallel FSDP2 run divides it: rows, columns, or neither."""
    if tensor.dim() < 2:
        return distribute_tensor(tensor, mesh, [Replicate() if "norm" in name else Shard(0)])
    return distribute_tensor(tensor, mesh, [Shard(1 if "o_proj" in name or "down_proj" in name else 0)])


def moments(tensors):
    """The state of an optimizer for two of the parameters."""
    of = lambda tensor: {"step": torch.tensor(2.0), "exp_avg": tensor.float() * 0, "exp_avg_sq": tensor.float() * 0}
    return {"state": {name: of(tensors[name]) for name in list(tensors)[:2]}, "param_groups": [{"lr": 0.1}]}


def run(rank, ranks, out, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    if ranks == 2:
        mesh = init_device_mesh("cpu", (2,))
        model = {name: divided(name, tensor, mesh) for name, tensor in llama().items()}
        small = {name: tensor for name, tensor in model.items() if "norm" in name}
        dcp.save({"app": {"model": model, "optim": moments(small)}, "step": 2}, checkpoint_id=out / "llama")
        writer = HuggingFaceStorageWriter(out / "llama_sharded", save_distributed=True)
        dcp.save(model, storage_writer=writer)
    else:
        mesh = init_device_mesh("cpu", (2, 2))
        tensors = mixed()
        both = {
            "grid": [Shard(0), Shard(1)], "half": [Replicate(), Shard(1)], "bfloat": [Shard(2), Shard(1)],
            "columns": [Shard(1), Shard(1)], "few": [Shard(0), Shard(0)],
        }
        model = {n: distribute_tensor(t, mesh, both[n]) if n in both else t for n, t in tensors.items()}
        # A flat dictionary, with an optimizer's state beside the model's.
        flat = {f"state.{n}.exp_avg": model[n].float() for n in ["grid", "few"]}
        dcp.save({**{f"module.{n}": t for n, t in model.items()}, **flat}, checkpoint_id=out / "mixed")
    dist.destroy_process_group()


def loaded(directory, prefix, expected, reader=None):
    """What PyTorch loads from a checkpoint into whole tensors."""
    held = {prefix + name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    dcp.load(held, checkpoint_id=None if reader else directory, storage_reader=reader, no_dist=True)
    return {name: held[prefix + name] for name in expected}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=GOLDEN / "distributed")
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    arguments = parser.parse_args()
    if torch.__version__.split("+")[0] != PINNED:
        sys.exit(f"make_distributed.py: torch is {torch.__version__}, not {PINNED}")
    if not arguments.check:
        shutil.rmtree(arguments.out, ignore_errors=True)
        arguments.out.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as directory:
            for ranks in [2, 4]:
                mp.spawn(run, args=(ranks, Path(directory), 29540 + ranks), nprocs=ranks)
            shutil.copytree(directory, arguments.out, dirs_exist_ok=True)
        save_file({n: t.contiguous() for n, t in mixed().items()}, arguments.out / "mixed.safetensors")
        # One rank's parts as torch.save writes them, which is not a way to save a model.
        mp.spawn(save_dtensor, args=(arguments.out / "dtensor.pt",), nprocs=1)
    out = arguments.out
    expected = load_file(out / "mixed.safetensors")
    sharded = HuggingFaceStorageReader(out / "llama_sharded")
    found = [
        (loaded(out / "llama", "app.model.", llama()), llama()),
        (loaded(out / "mixed", "module.", expected), expected),
        (loaded(out / "llama_sharded", "", llama(), sharded), llama()),
    ]
    for ours, theirs in found:
        if not all(torch.equal(ours[name], theirs[name]) for name in theirs):
            sys.exit("make_distributed.py: a checkpoint differs from the model")
    print(f"{len(found)} checkpoints have the tensors of their models")


def save_dtensor(_, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29549", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    torch.save({"weight": distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])}, path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
