"""Golden data for checkpoints that DeepSpeed itself writes: stages 1 to 3 of ZeRO on two ranks, on the CPU.

Writes crates/model-center/tests/golden/deepspeed; crates/model-center/tests/golden/README.md describes it. The data are
committed; run this only to change them, in an environment with torch 2.15.0, safetensors 0.8.0 and deepspeed 0.19.8
(python3 -m pip install torch==2.15.0 setuptools wheel; DS_BUILD_OPS=0 python3 -m pip install --no-build-isolation
deepspeed==0.19.8):

    python scripts/golden/make_deepspeed.py            # writes the directory
    python scripts/golden/make_deepspeed.py --check    # runs DeepSpeed's own zero_to_fp32 over it and compares

A small model of linear layers and norms, one of them frozen, takes two steps of Adam in bf16. Beside the checkpoints is
expected.safetensors, what DeepSpeed's get_fp32_state_dict_from_zero_checkpoint makes of each.
"""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/deepspeed"
VERSIONS = {"torch": "2.15.0", "deepspeed": "0.19.8"}
RANKS = 2
# Names of the checkpoints: the stage of ZeRO, and whether the second layer is frozen.
CASES = {"zero1": (1, False), "zero2_frozen": (2, True), "zero3": (3, False), "zero3_frozen": (3, True)}
# Universal checkpoints, by what they are made of.
UNIVERSAL = {"universal2": "zero2_frozen", "universal3": "zero3"}


def model():
    """Sizes that two ranks do not divide evenly."""
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3))


def run(rank, out, port):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
        DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1",
    )
    import deepspeed

    # Collectives in shared memory are compiled on first use, and change no value. (The name deepspeed.comm.torch is
    # PyTorch itself.)
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed("gloo")
    for name, (stage, is_frozen) in CASES.items():
        net = model()
        if is_frozen:
            net[1].weight.requires_grad_(False)
            net[1].bias.requires_grad_(False)
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        }
        parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        engine, *_ = deepspeed.initialize(model=net, model_parameters=parameters, config=config)
        torch.manual_seed(11 + rank)
        for _ in range(2):
            engine.backward(engine(torch.randn(2, 5).to(torch.bfloat16)).float().square().sum())
            engine.step()
        # Without it no universal checkpoint can be made.
        engine.save_checkpoint(str(out / name), tag="step2", client_state={"universal_checkpoint_info": {}})
    dist.destroy_process_group()


def universal(source, target):
    """What ds_to_universal.py makes of a checkpoint, without the moments, which nothing here reads."""
    from deepspeed.checkpoint import ds_to_universal

    arguments = ["--input_folder", str(source / "step2"), "--output_folder", str(target / "step2"),
                 "--num_extract_workers", "1", "--num_merge_workers", "1"]
    sys.argv = ["ds_to_universal.py", *arguments]
    ds_to_universal.main(ds_to_universal.parse_arguments())
    for moment in [*target.glob("step2/zero/*/exp_avg*.pt"), *target.glob("step2/zero/*/step.pt")]:
        moment.unlink()


def whole(directory):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    state = get_fp32_state_dict_from_zero_checkpoint(str(directory))
    return {name: tensor.detach().clone().contiguous().float() for name, tensor in state.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    arguments = parser.parse_args()
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    for module in (torch, deepspeed):
        found = module.__version__.split("+")[0]
        if found != VERSIONS[module.__name__]:
            sys.exit(f"make_deepspeed.py: {module.__name__} is {found}, not {VERSIONS[module.__name__]}")
    if not arguments.check:
        shutil.rmtree(arguments.out, ignore_errors=True)
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(run, args=(Path(directory), 29531), nprocs=RANKS)
            for name in CASES:
                target = arguments.out / name
                target.mkdir(parents=True)
                shutil.copytree(Path(directory) / name / "step2", target / "step2")
                (target / "latest").write_text("step2")
                save_file(whole(target), target / "expected.safetensors")
            for name, source in UNIVERSAL.items():
                universal(arguments.out / source, arguments.out / name)
                (arguments.out / name / "latest").write_text("step2")
                (arguments.out / name / "latest_universal").unlink()
                shutil.copy(arguments.out / source / "expected.safetensors", arguments.out / name)
    for name in CASES:
        found, expected = whole(arguments.out / name), load_file(arguments.out / name / "expected.safetensors")
        same = found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)
        if not same:
            sys.exit(f"make_deepspeed.py: {name} differs")
    print(f"{len(CASES)} checkpoints are what DeepSpeed makes of them")


if __name__ == "__main__":
    main()
