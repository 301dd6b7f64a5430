#!/usr/bin/env bash
# Guess: a checkpoint of torchtitan has the names of its model's parameters, which are Meta's:
# layers.0.attention.wq.weight and output.weight.
# Seen: version 0.3.0 computes queries, keys and values by one parameter, layers.0.attention.qkv_linear.wqkv.weight; a
# hook of state_dict divides it, so that a checkpoint has qkv_linear.wq, wk and wv, and no wqkv. The head is lm_head.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages torch==2.15.0 torchtitan==0.3.0
"$python" -W ignore - <<'PYTHON'
from torchtitan.models.llama3 import llama3_configs

model = llama3_configs["debugmodel"]("flex").build()
mine = {name.removeprefix("layers.0.") for name, _ in model.named_parameters() if name.startswith("layers.0.")}
saved = {name.removeprefix("layers.0.") for name in model.state_dict() if name.startswith("layers.0.")}
print(f"parameters alone: {sorted(mine - saved)}")
print(f"saved alone: {sorted(saved - mine)}")
assert mine - saved == {"attention.qkv_linear.wqkv.weight"}, "the parameter has another name now"
assert saved - mine == {f"attention.qkv_linear.{part}.weight" for part in ("wq", "wk", "wv")}, "other names are saved"
assert "lm_head.weight" in model.state_dict() and "output.weight" not in model.state_dict()
PYTHON
