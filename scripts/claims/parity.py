"""Directories of trained models opened by transformers, or by scripts/golden/cpm.py, and how far our logits are from
its.

    python parity.py DIR COUNT

Each of the COUNT directories in DIR is a model with inputs.safetensors and, in ours.safetensors, the logits that it had
here when it was read back. transformers, or cpm.py for the families that transformers has not, must find every tensor
and no further one; it computes in 64-bit floats. Prints the largest relative error of a model's logits. Called by
parity.sh; runs in the environment of scripts/python_env.sh.
"""

import json
import math
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

import cpm  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from goldens import in_64_bits  # noqa: E402
from safetensors.torch import load_file  # noqa: E402


def difference(directory):
    """The norm of the difference of the logits, relative to the norm of the logits."""
    config = json.loads((directory / "config.json").read_text())
    architecture = config["architectures"][0]
    if config["model_type"] in cpm.KINDS:
        model, report = cpm.from_directory(directory)
    else:
        model, report = getattr(transformers, architecture).from_pretrained(
            directory, attn_implementation="eager", output_loading_info=True)
    # Both initialize missing tensors at random and report it only here.
    wrong = {key: sorted(map(str, names)) for key, names in report.items() if names}
    if wrong:
        sys.exit(f"error: {directory}\n  reason: missing or left over: {wrong}\n"
                 f"  fix: the directory should hold every tensor of {architecture} and no further one")
    inputs = load_file(directory / "inputs.safetensors")
    labels = inputs.pop("labels", None)
    # Without language-modelling labels there is no loss, and none is needed.
    inputs.pop("next_sentence_label", None)
    if model.config.is_encoder_decoder and "decoder_input_ids" not in inputs:
        # What goes into the decoder is made of them.
        inputs["labels"] = labels
    with torch.no_grad(), in_64_bits():
        output = model.double().eval()(**inputs)
    ours = load_file(directory / "ours.safetensors")["logits"]
    if "start_logits" in output:
        ours = ours.reshape(2, *output.start_logits.shape).movedim(0, -1)  # [B, L, 2]
        theirs = torch.stack([output.start_logits, output.end_logits], dim=-1)  # [B, L, 2]
    else:
        # A BERT for pretraining has two heads; language modelling is the first.
        theirs = output.prediction_logits if "prediction_logits" in output else output.logits
    ours = ours.reshape(theirs.shape)
    mask = inputs.get("decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask")
    if theirs.dim() == 3 and mask is not None:
        # What sees nothing but padding, before the first token of a row or of a window, has no meaning.
        window = getattr(model.config, "sliding_window", None) or mask.shape[1]
        tokens = torch.nn.functional.pad(mask.cumsum(1), (window, 0))  # [B, L + window]
        seen = tokens[:, window:] - tokens[:, :-window] > 0  # [B, L]
        ours, theirs = ours[seen], theirs[seen]
    error = ((ours - theirs).norm() / theirs.norm()).item()
    if not math.isfinite(error):
        sys.exit(f"error: {directory}\n  reason: logits that are no numbers\n  fix: look where they begin to be none")
    return error


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    transformers.utils.logging.disable_progress_bar()
    directories = sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir())
    if len(directories) != int(sys.argv[2]):
        sys.exit(f"error: {sys.argv[1]}\n  reason: {len(directories)} directories\n"
                 f"  fix: run the tests, which write {sys.argv[2]}")
    errors = {directory.name: difference(directory) for directory in directories}
    print("  ".join(f"{name} {error:.1e}" for name, error in errors.items()), file=sys.stderr)
    print(f"{max(errors.values()):.2e}")


if __name__ == "__main__":
    main()
