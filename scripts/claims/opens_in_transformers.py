"""A fine-tuned directory opened by transformers, and how far our logits are from its.

    python opens_in_transformers.py inputs  MODEL_DIR DIR    writes DIR/inputs.safetensors for the forward program
    python opens_in_transformers.py compare MODEL_DIR DIR    reads DIR/out.safetensors, prints the largest difference

MODEL_DIR is what the finetune program left. The tokenizer that transformers finds in it makes the token ids, so the
directory's tokenizer, configuration and weights all have a part. Called by opens-in-transformers.sh; runs in the
environment of scripts/python_env.sh.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: E402

from minilm_embedding import SENTENCES  # noqa: E402

# The labels of examples/recipes/quickstart.toml in their order.
LABELS = {0: "negative", 1: "positive"}
# Logits that differ less from sentence to sentence would agree whatever the model computed.
LEAST_RANGE = 0.05


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("inputs", "compare"):
        sys.exit(__doc__)
    action, model_dir, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if action == "inputs":
        encoded = AutoTokenizer.from_pretrained(model_dir)(SENTENCES, padding=True, return_tensors="pt")
        names = ("input_ids", "attention_mask", "token_type_ids")
        save_file({name: encoded[name].contiguous() for name in names}, directory / "inputs.safetensors")
        return
    model, report = AutoModelForSequenceClassification.from_pretrained(
        model_dir, attn_implementation="eager", output_loading_info=True)
    # transformers initializes missing tensors at random and only prints a warning.
    wrong = {key: sorted(map(str, names)) for key, names in report.items() if names}
    if wrong or model.config.id2label != LABELS:
        sys.exit(f"error: {model_dir}\n  reason: transformers reports {wrong}, and labels {model.config.id2label}\n"
                 f"  fix: the directory should hold every tensor of {type(model).__name__} and labels {LABELS}")
    with torch.no_grad():
        theirs = model.eval()(**load_file(directory / "inputs.safetensors")).logits
    ours = load_file(directory / "out.safetensors")["logits"]
    if ours.shape != theirs.shape:
        sys.exit(f"error: logits\n  reason: ours have shape {list(ours.shape)}, theirs {list(theirs.shape)}\n"
                 "  fix: both should be five rows of two")
    span = (theirs.max(0).values - theirs.min(0).values).min().item()
    if span < LEAST_RANGE:
        sys.exit(f"error: logits\n  reason: in transformers they differ by {span:.2g} between sentences, "
                 "too little to compare\n"
                 "  fix: train for some more steps")
    print(f"{(ours - theirs).abs().max().item():.2e}")


if __name__ == "__main__":
    main()
