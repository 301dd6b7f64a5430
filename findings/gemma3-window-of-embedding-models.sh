#!/usr/bin/env bash
# Guess: a configuration that is saved and opened again is the same, so that an EmbeddingGemma that was tuned keeps its
# windows of 512 keys.
# Seen: transformers 4.57.6 halves the window of a Gemma 3 with attention to both sides when it reads a file, and writes
# the half: 512 keys become 257, then 129, with each time that it is saved and opened. What is computed changes for texts
# longer than the window. transformers 5.23.0 writes the number that it read, but a window of an odd number loses one.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

script='
import json
import sys
import tempfile
from pathlib import Path

import transformers
from transformers import Gemma3TextConfig

sizes, config = [], Gemma3TextConfig(use_bidirectional_attention=True, sliding_window=int(sys.argv[1]))
for _ in range(3):
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        sizes.append(json.loads((Path(directory) / "config.json").read_text())["sliding_window"])
        config = Gemma3TextConfig.from_pretrained(directory)
print(f"transformers {transformers.__version__}: {sys.argv[1]} is saved as {sizes}")
sys.exit(sizes != [int(size) for size in sys.argv[2:]] and "this version behaves in another way")
'
with_packages transformers==4.57.6 torch==2.15.0
"$python" -c "$script" 512 257 129 65
with_packages transformers==5.23.0 torch==2.15.0
"$python" -c "$script" 512 512 512 512
"$python" -c "$script" 511 510 510 510
