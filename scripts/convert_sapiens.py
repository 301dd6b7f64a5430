"""Turns Sapiens, a small RoBERTa of antibodies' heavy chains, from fairseq's form into a Hugging Face directory.

    python="$(scripts/python_env.sh)"
    "$python" scripts/convert_sapiens.py ASSETS_DIR OUT_DIR

ASSETS_DIR holds checkpoint_vh.pt and dict.txt as `scripts/assets.sh roberta` leaves them; OUT_DIR gets config.json,
model.safetensors and tokenizer.json, whose tokens are single amino acids. The checkpoint is a pickle: nothing but
tensors and the plain values of its settings is read from it.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

# The first tokens of fairseq's dictionaries, in this order; the mask token follows the file's tokens.
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
MASK = "<mask>"

# Their names within a block, and the names in transformers.
BLOCK = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
ENCODER = "decoder.sentence_encoder."


def load(path):
    """The checkpoint's settings and tensors."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    return vars(checkpoint["args"]), checkpoint["model"]


def vocabulary(path):
    """The tokens in the order of their ids."""
    return [*SPECIAL, *(line.split()[0] for line in path.read_text().splitlines()), MASK]


def renamed(name):
    """The name of transformers for one of fairseq's."""
    if name.startswith("decoder.lm_head."):
        return name.removeprefix("decoder.")
    name = name.removeprefix(ENCODER)
    if name.startswith("layers."):
        _, number, rest = name.split(".", 2)
        module, part = rest.rsplit(".", 1)
        return f"roberta.encoder.layer.{number}.{BLOCK[module]}.{part}"
    module, part = name.rsplit(".", 1)
    tables = {"embed_tokens": "word_embeddings", "embed_positions": "position_embeddings",
              "emb_layer_norm": "LayerNorm"}
    return f"roberta.embeddings.{tables[module]}.{part}"


def convert(settings, tensors, tokens):
    """config.json and the tensors of a Hugging Face directory."""
    wrong = {name: settings[name] for name, want in (("arch", "roberta_small"), ("activation_fn", "gelu"))
             if settings[name] != want}
    table = tensors[ENCODER + "embed_tokens.weight"]
    if wrong or not torch.equal(tensors["decoder.lm_head.weight"], table) or len(tokens) != len(table):
        sys.exit(f"error: the checkpoint is another model: {wrong or 'its head or its vocabulary differs'}\n"
                 "  fix: convert the one that scripts/assets.sh fetches")
    size = settings["encoder_embed_dim"]
    ours = {renamed(name): tensor.contiguous() for name, tensor in tensors.items() if name != "decoder.lm_head.weight"}
    # This model has no types of tokens; the table that transformers has for them adds nothing.
    ours["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, size)
    config = {
        "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "vocab_size": len(tokens),
        "hidden_size": size,
        "num_hidden_layers": settings["encoder_layers"], "num_attention_heads": settings["encoder_attention_heads"],
        "intermediate_size": settings["encoder_ffn_embed_dim"], "hidden_act": "gelu", "type_vocab_size": 1,
        "max_position_embeddings": len(tensors[ENCODER + "embed_positions.weight"]), "layer_norm_eps": 1e-5,
        "hidden_dropout_prob": settings["dropout"], "attention_probs_dropout_prob": settings["attention_dropout"],
        "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True, "dtype": "float32",
    }
    return config, ours


def tokenizer(tokens):
    """One token for each character of a text, between BOS and EOS."""
    ids = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    made.add_special_tokens([*SPECIAL, MASK])
    made.pre_tokenizer = Split(Regex("."), "isolated")
    made.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, ids[token]) for token in ("<s>", "</s>")])
    return made


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    assets, out = Path(sys.argv[1]), Path(sys.argv[2])
    tokens = vocabulary(assets / "dict.txt")
    config, tensors = convert(*load(assets / "checkpoint_vh.pt"), tokens)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer(tokens).save(str(out / "tokenizer.json"))


if __name__ == "__main__":
    main()
