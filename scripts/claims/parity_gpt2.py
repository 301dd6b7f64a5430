"""Folders of trained GPT-2s opened by transformers, and how far our logits are from its.

    python parity_gpt2.py DIR

Each folder in DIR is a model with inputs.safetensors and, in ours.safetensors, the logits that it had here when it was read
back. transformers must find every tensor and no further one; it computes in 64-bit floats. Prints the largest relative
error of a model's logits. Called by parity-gpt2.sh; runs in the environment of scripts/python_env.sh.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

# Two shapes with three heads.
FOLDERS = 6


def difference(folder):
    """The norm of the difference of the logits over that of the logits."""
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, architecture).from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True)
    # transformers draws what a folder lacks and says so only in a warning.
    wrong = {key: sorted(map(str, names)) for key, names in report.items() if names}
    if wrong:
        sys.exit(f"error: {folder}\n  reason: transformers reports {wrong}\n"
                 f"  fix: the folder should hold every tensor of {architecture} and no further one")
    inputs = load_file(folder / "inputs.safetensors")
    mask = inputs["attention_mask"]
    with torch.no_grad():
        theirs = model.double().eval()(input_ids=inputs["input_ids"], attention_mask=mask).logits
    ours = load_file(folder / "ours.safetensors")["logits"].reshape(theirs.shape)
    if theirs.dim() == 3:
        # Padding before the first token of a row sees nothing, and what becomes of that has no meaning.
        seen = mask.cumsum(1) > 0  # [B, L]
        ours, theirs = ours[seen], theirs[seen]
    return ((ours - theirs).norm() / theirs.norm()).item()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    transformers.utils.logging.disable_progress_bar()
    folders = sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir())
    if len(folders) != FOLDERS:
        sys.exit(f"error: {sys.argv[1]}\n  reason: {len(folders)} folders\n  fix: run the tests, which write {FOLDERS}")
    errors = {folder.name: difference(folder) for folder in folders}
    print("  ".join(f"{name} {error:.1e}" for name, error in errors.items()), file=sys.stderr)
    print(f"{max(errors.values()):.2e}")


if __name__ == "__main__":
    main()
