"""Golden data for GGUF files of further families: tiny models, each one file that holds what a directory holds.

Writes crates/model-center/tests/golden/gguf; the README.md there describes every file. Names of tensors are the
package gguf's, keys and values are as llama.cpp's converter writes them. Weights come from the golden directories
beside it, which must exist. The data are committed; run this only to change them:

    $(scripts/python_env.sh) scripts/golden/make_gguf_families.py            # writes the files
    $(scripts/python_env.sh) scripts/golden/make_gguf_families.py --check    # recomputes and compares them
"""

import argparse
import filecmp
import json
import math
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from gguf import MODEL_ARCH, GGUFWriter, RopeScalingType, get_tensor_name_map
from safetensors.numpy import load_file

from make_gguf import DEFAULT_OUT, PINNED, finish, save_safetensors, to_interleaved

# Name of the file, the directory of the same model, the architecture.
FILES = {
    "granite": ("granite_a/lm", MODEL_ARCH.GRANITE),
    "olmo2": ("olmo2_a/lm", MODEL_ARCH.OLMO2),
    "olmo3": ("olmo3_a/lm", MODEL_ARCH.OLMO2),
    "smollm3": ("gguf/smollm3", MODEL_ARCH.SMOLLM3),
    "phi3": ("phi3_a/lm", MODEL_ARCH.PHI3),
    "glm4": ("glm4_a/lm", MODEL_ARCH.GLM4),
    "gpt_neox": ("gpt_neox_a/untied", MODEL_ARCH.GPTNEOX),
    "gemma3": ("gemma3_b/lm", MODEL_ARCH.GEMMA3),
}


def make_smollm3(out):
    """A SmolLM3 as files of the format can state it: the fourth of five layers has no positions, and there are no
    windows. Its weights come from another one of three layers, and are the same with the other sign."""
    source = DEFAULT_OUT.parent / "smollm3_a/lm"
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.startswith(("model.layers.1.", "model.layers.2."))]:
        head, rest = name[:len("model.layers.")], name[len("model.layers."):]
        sign = 1 if "norm" in rest else -1
        tensors[f"{head}{int(rest[0]) + 2}{rest[1:]}"] = sign * tensors[name]
    config |= {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1], "layer_types": ["full_attention"] * 5,
               "sliding_window": None, "use_sliding_window": False}
    directory = out / "smollm3"
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_safetensors(directory / "model.safetensors", tensors)


def add_sizes(writer, config, norm_eps):
    """The keys of all families."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    norm_eps(config.get("rms_norm_eps", config.get("layer_norm_eps")))
    for name in ("bos", "eos", "pad"):
        getattr(writer, f"add_{name}_token_id")(config[f"{name}_token_id"])


def add_rotary(writer, config):
    """What the converter's base class writes: scaling and base of layers without a window, base of those with one."""
    parameters = config["rope_parameters"]
    full = parameters.get("full_attention", parameters)
    writer.add_rope_freq_base(full["rope_theta"])
    if full["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(full["rope_type"]))
        writer.add_rope_scaling_factor(full["factor"])
    if full["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        # OLMo 3's files state it; it is the one that follows from the factor.
        writer.add_rope_scaling_yarn_attn_factor(0.1 * math.log(full["factor"]) + 1)
        writer.add_rope_scaling_yarn_beta_fast(32.0)
        writer.add_rope_scaling_yarn_beta_slow(1.0)
    if "sliding_attention" in parameters:
        writer.add_rope_freq_base_swa(parameters["sliding_attention"]["rope_theta"])


def add_llama_like(writer, config):
    """The keys of families with grouped heads and rotary positions."""
    add_sizes(writer, config, writer.add_layer_norm_rms_eps)
    writer.add_head_count_kv(config["num_key_value_heads"])
    add_rotary(writer, config)
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def add_granite(writer, config):
    add_llama_like(writer, config)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def add_smollm3(writer, config):
    add_llama_like(writer, config)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])


def add_olmo3(writer, config):
    add_llama_like(writer, config)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def add_phi3(writer, config):
    """This family's converter writes no type of scaling; LongRoPE's divisors are tensors."""
    add_sizes(writer, config, writer.add_layer_norm_rms_eps)
    parameters = config["rope_parameters"]
    heads, trained = config["num_attention_heads"], parameters["original_max_position_embeddings"]
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(parameters["rope_theta"])
    writer.add_rope_dimension_count(int(parameters["partial_rotary_factor"] * config["hidden_size"]) // heads)
    writer.add_rope_scaling_orig_ctx_len(trained)
    writer.add_sliding_window(config["sliding_window"] or 0)
    scale = config["max_position_embeddings"] / trained
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(trained)))
    for name in ("long", "short"):
        writer.add_tensor(f"rope_factors_{name}.weight", np.array(parameters[f"{name}_factor"], dtype=np.float32))


def add_glm4(writer, config):
    add_llama_like(writer, config)
    writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))


def add_gpt_neox(writer, config):
    """The converter leaves the base out, as all published models have the format's own, 10000."""
    add_sizes(writer, config, writer.add_layer_norm_eps)
    head = config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(int(config["rope_parameters"]["partial_rotary_factor"] * head))
    writer.add_rope_freq_base(float(config["rope_parameters"]["rope_theta"]))
    writer.add_parallel_residual(config["use_parallel_residual"])


def add_gemma3(writer, config):
    """The converter leaves the period of the windows out, as all published models have the format's own, 6."""
    add_llama_like(writer, config)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_uint32("gemma3.attention.sliding_window_pattern", config["sliding_window_pattern"])


def converted(family, name, values, config):
    """The values of a tensor as the converter stores them."""
    heads = config["num_attention_heads"]
    if family in ("granite", "smollm3"):
        if ".q_proj." in name:
            return to_interleaved(values, heads)
        if ".k_proj." in name:
            return to_interleaved(values, config["num_key_value_heads"])
    if family == "gpt_neox" and ".query_key_value." in name:
        by_head = values.reshape(heads, 3, config["hidden_size"] // heads, *values.shape[1:])
        return np.ascontiguousarray(by_head.swapaxes(0, 1)).reshape(values.shape)
    if family == "gemma3" and name.endswith("norm.weight"):
        return values + np.float32(1)
    return values


def make(out, family, directory, architecture):
    """The file of one family."""
    is_own = directory.startswith("gguf/")
    golden = out / directory.removeprefix("gguf/") if is_own else DEFAULT_OUT.parent / directory
    config = json.loads((golden / "config.json").read_text())
    names = get_tensor_name_map(architecture, config["num_hidden_layers"])
    arch = {"gpt_neox": "gptneox", "olmo3": "olmo2"}.get(family, family)
    writer = GGUFWriter(out / f"{family}.gguf", arch)
    writer.add_name("tiny")
    {"granite": add_granite, "smollm3": add_smollm3, "olmo3": add_olmo3, "phi3": add_phi3, "glm4": add_glm4,
     "gpt_neox": add_gpt_neox, "gemma3": add_gemma3}.get(family, add_llama_like)(writer, config)
    for name, values in sorted(load_file(golden / "model.safetensors").items()):
        there = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(there, np.ascontiguousarray(converted(family, name, values, config)))
    finish(writer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    arguments = parser.parse_args()
    found = {name: version(name) for name in PINNED}
    if found != PINNED:
        sys.exit(f"the goldens were made with {PINNED}, this environment has {found}")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) if arguments.check else DEFAULT_OUT
        make_smollm3(made)
        for family, (directory, architecture) in FILES.items():
            make(made, family, directory, architecture)
        if arguments.check:
            names = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
            _, differing, absent = filecmp.cmpfiles(made, DEFAULT_OUT, names, shallow=False)
            if differing or absent:
                sys.exit(f"other bytes than committed: {differing + absent}")
            print(f"{len(names)} files equal")


if __name__ == "__main__":
    main()
