"""Amino acids that a real RoBERTa puts at masked places of antibodies, by PyTorch and by ours.

    python real_roberta.py inputs  MODEL_DIR DIR         writes DIR/inputs.safetensors for the forward program
    python real_roberta.py compare ASSETS_DIR DIR        reads DIR/out.safetensors and prints
                                                         `RECOVERED/MASKED DIFFERENT ERROR`

Every residue of every sequence is masked once, in rows that have every eighth masked. PyTorch reads the checkpoint
itself, ours the model that scripts/convert_sapiens.py made of it: torch.nn.TransformerEncoderLayer in 64-bit floats.
DIFFERENT counts masked positions at which the two predictions differ, RECOVERED the ones at which ours is correct, and
ERROR is the largest difference of a logit there. Called by real-roberta.sh; runs in the environment of
scripts/python_env.sh.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import embedding, gelu, layer_norm, linear

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from convert_sapiens import ENCODER, load  # noqa: E402

# Variable regions of the heavy chains of trastuzumab, adalimumab and bevacizumab, all of other lengths.
SEQUENCES = [
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGK"
    "GLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGK"
    "GLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
    "EVQLVESGGGLVQPGGSLRLSCAASGYTFTNYGMNWVRQAPGK"
    "GLEWVGWINTYTGEPTYAADFKRRFTFSLDTSKSTAYLQMNSLRAEDTAVYYCAKYPHYYGSSHWYFDVWGQGTLVTVSS",
]
EVERY = 8
PAD, EPSILON = 1, 1e-5


def inputs(directory):
    """Rows of masked sequences, padded on the right, with the true tokens as labels where they are masked."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    mask = tokenizer.token_to_id("<mask>")
    rows = [torch.tensor(tokenizer.encode(text).ids) for text in SEQUENCES for _ in range(EVERY)]  # each [L]
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), PAD)  # [B, L]
    labels = torch.full_like(ids, -100)  # [B, L]
    for number, row in enumerate(rows):
        # BOS and EOS are never masked.
        places = torch.arange(1 + number % EVERY, len(row) - 1, EVERY)
        ids[number, :len(row)] = row
        labels[number, places] = row[places]
        ids[number, places] = mask
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def reference(path, ids):
    """Logits of the checkpoint, [B, L, V], in 64-bit floats."""
    settings, tensors = load(path)
    tensors = {name: tensor.double() for name, tensor in tensors.items()}

    def norm(name, hidden):
        return layer_norm(hidden, hidden.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], EPSILON)

    def block(number):
        own = {name.removeprefix(f"{ENCODER}layers.{number}."): tensor for name, tensor in tensors.items()}
        size, heads = settings["encoder_embed_dim"], settings["encoder_attention_heads"]
        layer = torch.nn.TransformerEncoderLayer(
            size, heads, settings["encoder_ffn_embed_dim"], dropout=0.0, activation=gelu, layer_norm_eps=EPSILON,
            batch_first=True, dtype=torch.float64)
        names = {"self_attn.out_proj": "self_attn.out_proj", "linear1": "fc1", "linear2": "fc2",
                 "norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"}
        state = {f"{theirs}.{part}": own[f"{name}.{part}"] for theirs,
                 name in names.items() for part in ("weight", "bias")}
        for part in ("weight", "bias"):
            state[f"self_attn.in_proj_{part}"] = torch.cat([own[f"self_attn.{kind}_proj.{part}"] for kind in "qkv"])
        layer.load_state_dict(state)
        # In training's mode the layer takes no shortcuts; there is no dropout.
        return layer.train()

    is_word = ids != PAD  # [B, L]
    positions = is_word.cumsum(1) * is_word + PAD  # [B, L]
    hidden = embedding(ids, tensors[ENCODER + "embed_tokens.weight"])  # [B, L, D]
    hidden = hidden + embedding(positions, tensors[ENCODER + "embed_positions.weight"])  # [B, L, D]
    hidden = norm(ENCODER + "emb_layer_norm", hidden)  # [B, L, D]
    for number in range(settings["encoder_layers"]):
        hidden = block(number)(hidden, src_key_padding_mask=~is_word)  # [B, L, D]
    head = "decoder.lm_head"
    dense = gelu(linear(hidden, tensors[f"{head}.dense.weight"], tensors[f"{head}.dense.bias"]))  # [B, L, D]
    return linear(norm(f"{head}.layer_norm", dense), tensors[f"{head}.weight"], tensors[f"{head}.bias"])  # [B, L, V]


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("inputs", "compare"):
        sys.exit(__doc__)
    action, source, directory = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if action == "inputs":
        save_file(inputs(source), directory / "inputs.safetensors")
        return
    given = load_file(directory / "inputs.safetensors")
    masked = given["labels"] != -100  # [B, L]
    with torch.no_grad():
        theirs = reference(source / "checkpoint_vh.pt", given["input_ids"])[masked]  # [places, V]
    ours = load_file(directory / "out.safetensors")["logits"].reshape(*masked.shape, -1)[masked]  # [places, V]
    recovered = (ours.argmax(1) == given["labels"][masked]).sum().item()
    different = (ours.argmax(1) != theirs.argmax(1)).sum().item()
    print(f"{recovered}/{masked.sum().item()} {different} {(ours - theirs).abs().max().item():.1e}")


if __name__ == "__main__":
    main()
