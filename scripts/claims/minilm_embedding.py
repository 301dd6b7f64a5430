"""Sentence embeddings of five sentences by transformers, and how far ours are from them.

    python minilm_embedding.py inputs  MODEL_DIR DIR    writes DIR/inputs.safetensors for the forward program
    python minilm_embedding.py compare MODEL_DIR DIR    reads DIR/out.safetensors, prints the largest difference

An embedding is the mean of the last hidden states over the tokens of a sentence, scaled to length one. Both sides use
the same token ids. The mean and the scaling are done here for both, so the figure is about the hidden states.
Called by minilm-embedding.sh; runs in the environment of scripts/python_env.sh.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoTokenizer, BertModel  # noqa: E402

# Of different lengths, so that every row but the longest is padded.
SENTENCES = [
    "Hello.",
    "The quick brown fox jumps over the lazy dog.",
    "A film that is neither funny nor sad, and in the end not even long.",
    "Transformers of many layers can be trained on small machines when memory is used with care.",
    "In 1969 three people flew to the moon; 400,000 others had worked for years so that they could, "
    "and some 600 million watched two of them walk.",
]


def embed(hidden, mask):
    """Mean over the tokens that count, then length one: [B, L, D] and [B, L] to [B, D]."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("inputs", "compare"):
        sys.exit(__doc__)
    action, model_dir, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if action == "inputs":
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
        encoded = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        names = ("input_ids", "attention_mask", "token_type_ids")
        save_file({name: encoded[name].contiguous() for name in names}, directory / "inputs.safetensors")
        return
    inputs = load_file(directory / "inputs.safetensors")
    model = BertModel.from_pretrained(model_dir, attn_implementation="eager").eval()
    with torch.no_grad():
        reference = embed(model(**inputs).last_hidden_state, inputs["attention_mask"])
    ours = load_file(directory / "out.safetensors")
    last = f"hidden.{model.config.num_hidden_layers}"
    if last not in ours:
        sys.exit(f"error: out.safetensors has no tensor {last!r}, only {sorted(ours)}")
    difference = (embed(ours[last], inputs["attention_mask"]) - reference).abs().max().item()
    print(f"{difference:.2e}")


if __name__ == "__main__":
    main()
