#!/usr/bin/env bash
# Guess: rope_theta in a configuration of Code World Model is the base of its rotary embedding, as in Llama, whose
# transformers 5 moves it into rope_parameters.
# Seen: transformers 5.23.0 drops it in silence where rope_parameters is not given: CwmConfig(rope_theta=500000.0)
# has the base 1000000 and Llama 3's stretching, the defaults of the class, and so has a file with that field.
# LlamaConfig with the same field has the base 500000 and no stretching.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages transformers==5.23.0 torch==2.15.0

"$python" - <<'PYTHON'
import json
import sys
import tempfile
from pathlib import Path

from transformers import AutoConfig, CwmConfig, LlamaConfig


def positions(config):
    return config.rope_parameters["rope_type"], config.rope_parameters["rope_theta"]


def from_file(model_type):
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps({"model_type": model_type, "rope_theta": 500000.0}))
        return AutoConfig.from_pretrained(directory)


seen = {
    "CwmConfig(rope_theta=500000.0)": positions(CwmConfig(rope_theta=500000.0)),
    "cwm, a file with rope_theta": positions(from_file("cwm")),
    "LlamaConfig(rope_theta=500000.0)": positions(LlamaConfig(rope_theta=500000.0)),
    "llama, a file with rope_theta": positions(from_file("llama")),
}
for name, values in seen.items():
    print(f"{name}: {values[0]}, base {values[1]}")
if list(seen.values()) != [("llama3", 1000000.0)] * 2 + [("default", 500000.0)] * 2:
    sys.exit("this version behaves in another way")
PYTHON
