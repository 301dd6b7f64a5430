#!/usr/bin/env bash
# Guess: ModernBERT's window is its field local_attention; a sliding_window in the file, which its documentation
# does not name, changes nothing.
# Seen: transformers 5.23.0 takes sliding_window where a file has one, and local_attention becomes twice that number:
# with local_attention = 8 and sliding_window = 2 a token of a layer with a window reads 2 tokens to either side, not 4,
# and the file that is saved again states local_attention = 4. Without the stray field 8 stays 8.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages transformers==5.23.0 torch==2.15.0

"$python" - <<'PYTHON'
import sys

import torch
from transformers import ModernBertConfig, ModernBertModel

SIZES = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
         "local_attention": 8, "layer_types": ["sliding_attention"]}
LENGTH, CHANGED = 21, 10


def reach(**fields):
    """Tokens to either side whose states change with one token, and the window that the configuration states."""
    config = ModernBertConfig(**SIZES, **fields, attn_implementation="eager")
    torch.manual_seed(0)
    model = ModernBertModel(config).eval()
    ids = torch.arange(1, LENGTH + 1)[None]
    other = ids.clone()
    other[0, CHANGED] = 50
    with torch.no_grad():
        apart = (model(ids).last_hidden_state - model(other).last_hidden_state).abs().amax(-1)[0]
    places = apart.nonzero().flatten().tolist()
    return max(places) - CHANGED, config.local_attention


plain, stray = reach(), reach(sliding_window=2)
print(f"local_attention 8: {plain[0]} tokens to either side, states {plain[1]}")
print(f"with sliding_window 2: {stray[0]} tokens to either side, states {stray[1]}")
if (plain, stray) != ((4, 8), (2, 4)):
    sys.exit("this version behaves in another way")
PYTHON
