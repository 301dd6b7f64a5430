#!/usr/bin/env bash
# Guess: evaluation changes nothing: a layer in NF4 trains on and is saved as before.
# Seen: on a CPU with AVX512_BF16 one call in evaluation mode rounds the scales of bitsandbytes' Linear4bit to bf16, for
# good: training goes on with other weights. Without double quantisation state_dict, which turns the codes back into
# their order, leaves the scales transposed: opened again, the layer has other weights altogether. Before an evaluation
# what is saved is exact. On a CPU without AVX512_BF16 there is nothing to see: exit status 75.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if ! grep -qw avx512_bf16 /proc/cpuinfo; then
    echo "this processor has no AVX512_BF16"
    exit 75
fi
with_packages bitsandbytes==0.50.2 torch==2.15.0

"$python" - <<'PYTHON'
import sys

import torch
from bitsandbytes.nn import Linear4bit, Params4bit

torch.manual_seed(0)
WEIGHT, INPUT = torch.randn(128, 256), torch.randn(4, 256)


def layer(weight):
    made = Linear4bit(256, 128, bias=False, compute_dtype=torch.float32, quant_type="nf4")
    made.weight = weight
    return made.train()


def quantised(compress):
    return layer(Params4bit(WEIGHT, requires_grad=False, quant_type="nf4", compress_statistics=compress).to("cpu"))


def reopened(saved):
    statistics = {name.removeprefix("weight."): value for name, value in saved.items() if name != "weight"}
    return layer(Params4bit.from_prequantized(saved["weight"], statistics, device="cpu"))


def copied(state):
    return {name: value.clone() for name, value in state.items()}


as_seen = True
for compress in (False, True):
    made = quantised(compress)
    before = made(INPUT).double()

    def error(output):
        return ((output.double() - before).norm() / before.norm()).item()

    unchanged = error(reopened(copied(made.state_dict()))(INPUT))
    made.eval()
    with torch.no_grad():
        evaluated = error(made(INPUT))
    after = error(made.train()(INPUT))
    state = copied(made.state_dict())
    scales = state["weight.absmax"]
    saved = error(reopened(state)(INPUT))
    print(f"double quantisation {compress}: saved before an evaluation {unchanged:.1e}, in evaluation {evaluated:.1e}, "
          f"in training after it {after:.1e}, saved then and opened {saved:.1e}; scales {tuple(scales.shape)} "
          f"{scales.dtype}")
    as_seen &= unchanged < 1e-6 and 1e-4 < after < 1e-1
    if compress:
        as_seen &= 1e-4 < saved < 1e-1 and scales.shape == (512,)
    else:
        as_seen &= saved > 1e-1 and scales.dtype == torch.bfloat16 and scales.shape == (4, 128)
if not as_seen:
    sys.exit("this version behaves in another way")
PYTHON
