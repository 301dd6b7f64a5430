"""Writes crates/bmtrain-programs/tests/it/models_page/sizes.json: the configurations that the memory of docs/models.md
is counted for. Run with transformers 5.23.0: python make_model_sizes.py ROOT

They are what a configuration class of transformers has where nothing is given. Of the families that transformers lacks
they are the defaults of ModelCenter's classes and of CPM-Pretrain's arguments.
"""

import json
import sys
import tempfile
from pathlib import Path

import transformers

FAMILIES = [
    "albert", "bart", "bert", "bloom", "camembert", "cwm", "distilbert", "electra", "gemma2", "gemma3_text", "glm4",
    "gpt2", "gpt_neox", "gptj", "granite", "llama", "marian", "megatron-bert", "ministral", "mistral", "modernbert",
    "mpnet", "mt5", "olmo2", "olmo3", "opt", "phi3", "qwen2", "qwen3", "roberta", "seed_oss", "smollm3", "t5",
    "xlm-roberta",
]
# Two rows of their position table precede the first position: with the default of 512 they take 510 tokens.
COUNTED_FROM_PADDING = ["camembert", "mpnet", "roberta", "xlm-roberta"]
# Without it the class makes a configuration that no model can be made of.
FURTHER = {"ministral": {"head_dim": 128}}
DISTANCES = {
    "vocab_size": 30968, "dim_model": 768, "num_heads": 12, "dim_head": 64, "dim_ff": 1920, "norm_eps": 1e-6,
    "position_bias_num_buckets": 32, "position_bias_max_distance": 128, "ffn_activate_fn": "gated_gelu",
    "length_scale": False, "attn_scale": False, "tied": False,
}
PREDECESSORS = {
    "cpm1": {**DISTANCES, "num_layers": 12},
    "cpm2": {**DISTANCES, "vocab_size": 26240, "num_encoder_layers": 12, "num_decoder_layers": 12},
    "cpm_t5": {
        "vocab_size": 26240, "hidden_size": 768, "num_attention_heads": 12, "kv_hidden_size": 64,
        "ff_hidden_size": 3072, "num_layers": 12, "num_decoder_layers": 12, "max_position_embeddings": 1024,
        "hidden_act": "gelu", "layernorm_epsilon": 1e-5, "tie_word_embeddings": True, "hidden_bias": False,
        "cpm_pretrain_norms": False, "hidden_dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.1,
    },
}


def sizes(family):
    """The fields of the file that transformers saves."""
    config = transformers.CONFIG_MAPPING[family](**FURTHER.get(family, {}))
    if family in COUNTED_FROM_PADDING:
        config.max_position_embeddings += 2
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        return json.loads(Path(directory, "config.json").read_text())


def main():
    root = Path(sys.argv[1])
    assert transformers.__version__ == "5.23.0", transformers.__version__
    configs = {family: sizes(family) for family in FAMILIES}
    configs |= {family: {**fields, "model_type": family} for family, fields in PREDECESSORS.items()}
    lines = [f"{json.dumps(family)}: {json.dumps(configs[family], sort_keys=True)}" for family in sorted(configs)]
    path = root / "crates/bmtrain-programs/tests/it/models_page/sizes.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
