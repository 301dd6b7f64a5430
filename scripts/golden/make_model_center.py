"""Golden directories in ModelCenter's layout: pytorch_model.pt written by torch, config.json without model_type.

Reads the directories that make_bert.py and make_t5.py wrote, and writes under
crates/model-center/tests/golden/model_center what ModelCenter's converters make of their weights;
crates/model-center/tests/golden/README.md describes it. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_model_center.py            # writes the directories
    "$python" scripts/golden/make_model_center.py --check    # compares their tensors with the committed ones

expected.safetensors repeats the tensors of pytorch_model.pt, for the check.
"""

import json
import shutil
from collections import OrderedDict

import torch
from safetensors.torch import load_file, save_file

from goldens import DEFAULT_OUT, run


def add(state, name, source, other):
    """A layer's weight, and its bias if it has one, under another name."""
    for kind in ("weight", "bias"):
        if f"{other}.{kind}" in source:
            state[f"{name}.{kind}"] = source[f"{other}.{kind}"].clone()


def bert(source, layers):
    """Its norms precede layers, so each of BERT's norms belongs to the layer that follows."""
    state = OrderedDict()
    for name, other in (("input", "word"), ("position", "position"), ("token_type", "token_type")):
        add(state, f"{name}_embedding", source, f"bert.embeddings.{other}_embeddings")
    for i in range(layers):
        theirs, ours = f"bert.encoder.layer.{i}", f"encoder.layers.{i}"
        before = "bert.embeddings.LayerNorm" if i == 0 else f"bert.encoder.layer.{i - 1}.output.LayerNorm"
        add(state, f"{ours}.self_att.layernorm_before_attention", source, before)
        for short, long in (("q", "query"), ("k", "key"), ("v", "value")):
            add(state, f"{ours}.self_att.self_attention.project_{short}", source, f"{theirs}.attention.self.{long}")
        add(state, f"{ours}.self_att.self_attention.attention_out", source, f"{theirs}.attention.output.dense")
        add(state, f"{ours}.ffn.layernorm_before_ffn", source, f"{theirs}.attention.output.LayerNorm")
        add(state, f"{ours}.ffn.ffn.w_in.w", source, f"{theirs}.intermediate.dense")
        add(state, f"{ours}.ffn.ffn.w_out", source, f"{theirs}.output.dense")
    add(state, "encoder.output_layernorm", source, f"bert.encoder.layer.{layers - 1}.output.LayerNorm")
    add(state, "lm_head.dense", source, "cls.predictions.transform.dense")
    add(state, "lm_head.layer_norm", source, "cls.predictions.transform.LayerNorm")
    # Its class reads the token embedding instead and never trains this one.
    state["lm_head.decoder.weight"] = state["input_embedding.weight"] + 1
    state["lm_head.decoder.bias"] = source["cls.predictions.bias"].clone()
    # The converter takes it from the base model; the language-modelling head does not read it.
    size = state["lm_head.dense.bias"].shape[0]
    state["pooler.dense.weight"], state["pooler.dense.bias"] = torch.eye(size), torch.zeros(size)
    return state


def t5(source, layers):
    """T5 1.0 with states a hundredth of what they were."""
    state = OrderedDict([("input_embedding.weight", source["shared.weight"] / 100)])
    for stack, last in (("encoder", 1), ("decoder", 2)):
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        state[f"position_bias_{stack[:3]}.relative_attention_bias"] = source[bias].clone()
        for i in range(layers[stack]):
            theirs, ours = f"{stack}.block.{i}.layer", f"{stack}.layers.{i}"
            parts = [("self_att", f"{theirs}.0", "SelfAttention")]
            parts += [("cross_att", f"{theirs}.1", "EncDecAttention")] if stack == "decoder" else []
            for part, layer, name in parts:
                add(state, f"{ours}.{part}.layernorm_before_attention", source, f"{layer}.layer_norm")
                for short in "qkv":
                    add(state, f"{ours}.{part}.self_attention.project_{short}", source, f"{layer}.{name}.{short}")
                out = source[f"{layer}.{name}.o.weight"] / 100
                state[f"{ours}.{part}.self_attention.attention_out.weight"] = out
            add(state, f"{ours}.ffn.layernorm_before_ffn", source, f"{theirs}.{last}.layer_norm")
            maps = f"{theirs}.{last}.DenseReluDense"
            state[f"{ours}.ffn.ffn.w_in.w.weight"] = source[f"{maps}.wi.weight"] / 10
            state[f"{ours}.ffn.ffn.w_out.weight"] = source[f"{maps}.wo.weight"] / 10
        add(state, f"{stack}.output_layernorm", source, f"{stack}.final_layer_norm")
    return state


def sizes(config):
    """The sizes of a BERT's file."""
    return {"vocab_size": config["vocab_size"], "dim_model": config["hidden_size"], "half": False,
            "num_heads": config["num_attention_heads"], "num_layers": config["num_hidden_layers"],
            "dim_head": config["hidden_size"] // config["num_attention_heads"], "norm_eps": config["layer_norm_eps"],
            "dim_ff": config["intermediate_size"], "position_size": config["max_position_embeddings"],
            "type_size": config["type_vocab_size"], "ffn_activate_fn": config["hidden_act"]}


def sizes_of_t5(config):
    """The sizes of a T5. Its squares are scaled by one ten-thousandth, and so is the epsilon added to them: only then
    is the function the same."""
    return {"vocab_size": config["vocab_size"], "dim_model": config["d_model"], "num_heads": config["num_heads"],
            "dim_head": config["d_kv"], "dim_ff": config["d_ff"], "num_encoder_layers": config["num_layers"],
            "num_decoder_layers": config["num_decoder_layers"], "norm_eps": config["layer_norm_epsilon"] * 1e-4,
            "position_bias_num_buckets": config["relative_attention_num_buckets"], "half": False, "scale": True,
            "position_bias_max_distance": config["relative_attention_max_distance"], "ffn_activate_fn": "relu"}


def write(out, name, state, config):
    directory = out / "model_center" / name
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(state, directory / "pytorch_model.pt")
    save_file(state, directory / "expected.safetensors")
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    print(f"model_center/{name}: {len(state)} tensors")


def read(model, head):
    directory = DEFAULT_OUT / model / head
    return load_file(directory / "model.safetensors"), json.loads((directory / "config.json").read_text())


def write_all(out):
    shutil.rmtree(out / "model_center", ignore_errors=True)
    source, config = read("bert_a", "mlm")
    write(out, "bert", bert(source, config["num_hidden_layers"]), sizes(config))
    source, config = read("t5_a", "lm")
    layers = {"encoder": config["num_layers"], "decoder": config["num_decoder_layers"]}
    write(out, "t5", t5(source, layers), sizes_of_t5(config))


if __name__ == "__main__":
    run(__doc__, write_all)
