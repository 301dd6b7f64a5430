#!/usr/bin/env bash
# Guess: a configuration that is saved and opened again is the same, so that an EmbeddingGemma that was tuned keeps its
# windows of 512 keys.
# Seen: transformers 4.57.6 halves the window of a Gemma 3 with attention to both sides whenever it makes the
# configuration, and saves the half: 512 keys become 257, then 129, then 65. Nothing tells a file that was saved twice
# from one that was made with a smaller window. 5.23.0 saves the number that it read.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages transformers==4.57.6

"$python" - <<'PYTHON'
import json
import sys
import tempfile
from pathlib import Path

from transformers import Gemma3TextConfig

sizes, config = [], Gemma3TextConfig(use_bidirectional_attention=True, sliding_window=512)
for _ in range(3):
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        sizes.append(json.loads((Path(directory) / "config.json").read_text())["sliding_window"])
        config = Gemma3TextConfig.from_pretrained(directory)
print(f"a window of 512 keys is saved as {sizes}")
if sizes != [257, 129, 65]:
    sys.exit("this version behaves in another way")
PYTHON
