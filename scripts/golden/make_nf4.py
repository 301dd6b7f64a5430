"""Golden data for NF4: writes `nf4`, matrices as bitsandbytes quantises them on the CPU, with double quantisation.

crates/model-center/tests/golden/nf4/README.md describes every tensor. The data are committed; run the script only to
change them:

    export PYTHONPATH="$(scripts/bitsandbytes_env.sh)"
    "$(scripts/python_env.sh)" scripts/golden/make_nf4.py            # writes the directory
    "$(scripts/python_env.sh)" scripts/golden/make_nf4.py --check    # recomputes it and compares with the committed one
"""

import sys

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from safetensors.torch import save_file

from goldens import run

PINNED_BITSANDBYTES = "0.50.2"


def matrices():
    """Matrices by name: ordinary and heavy tails, values of bf16, zeros, equal blocks, a row of the largest models."""
    generator = torch.Generator().manual_seed(5)
    normal = torch.randn(96, 192, generator=generator) * 0.02
    heavy = torch.randn(40, 128, generator=generator) / torch.randn(40, 128, generator=generator).abs().clamp(min=0.05)
    zeros = torch.randn(4, 64, generator=generator)
    zeros[2] = 0
    return {
        "normal": normal,
        "heavy": heavy,
        "bf16": (torch.randn(16, 320, generator=generator) * 0.1).bfloat16().float(),
        "zeros": zeros,
        "equal": torch.full((3, 128), -0.375),
        "wide": torch.randn(1, 8192, generator=generator),
    }


def write_all(out):
    """Write the directory."""
    if bitsandbytes.__version__ != PINNED_BITSANDBYTES:
        sys.exit(f"error: bitsandbytes is {bitsandbytes.__version__}, the goldens are pinned to {PINNED_BITSANDBYTES}")
    tensors = {}
    for name, values in matrices().items():
        codes, state = quantize_4bit(values, quant_type="nf4", compress_statistics=True)
        tensors |= {
            f"{name}.values": values,
            f"{name}.codes": codes.flatten(),
            f"{name}.scale_codes": state.absmax,
            f"{name}.scales": state.state2.absmax,
            f"{name}.offset": state.offset.reshape(1),
            f"{name}.dequantised": dequantize_4bit(codes, state),
        }
    (out / "nf4").mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "nf4" / "nf4.safetensors")


if __name__ == "__main__":
    run(__doc__, write_all)
