"""Golden data for CPM-Pretrain's T5: tiny seeded models of cpm.py, evaluated in 64-bit floats; transformers has none.

Writes crates/model-center/tests/golden/cpm_t5_a, cpm_t5_b and cpm_t5_c; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_cpm_t5.py            # writes the directories
    "$python" scripts/golden/make_cpm_t5.py --check    # recomputes them and compares with the committed files
"""

from functools import partial

from cpm import CpmT5, configuration
from seq2seq import FROM_LABELS, SPELLED_OUT, Family, main

KIND = (CpmT5, partial(configuration, "cpm_t5"))

# Shapes that share no size, so that a transposed or mixed-up axis cannot pass all.
MODELS = {
    # As CPM-Pretrain's example: no biases in linear layers; the decoder reads what it is given.
    "cpm_t5_a": {
        "kind": KIND,
        "seed": 111,
        "tied": True,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "num_attention_heads": 4, "kv_hidden_size": 5, "ff_hidden_size": 26,
            "num_layers": 2, "num_decoder_layers": 1, "max_position_embeddings": 14, "layernorm_epsilon": 1e-5,
            "hidden_act": "gelu", "hidden_bias": False, "cpm_pretrain_norms": False,
        },
        **SPELLED_OUT,
    },
    # Biases in all linear layers; decoder inputs are made from the labels.
    "cpm_t5_b": {
        "kind": KIND,
        "seed": 113,
        "tied": True,
        "config": {
            "vocab_size": 37, "hidden_size": 20, "num_attention_heads": 2, "kv_hidden_size": 7, "ff_hidden_size": 15,
            "num_layers": 1, "num_decoder_layers": 2, "max_position_embeddings": 11, "layernorm_epsilon": 1e-3,
            "hidden_act": "gelu_new", "hidden_bias": True, "cpm_pretrain_norms": False,
            "decoder_start_token_id": 5, "pad_token_id": 0,
        },
        **FROM_LABELS,
    },
    # CPM-Pretrain's norms.
    "cpm_t5_c": {
        "kind": KIND,
        "seed": 115,
        "tied": True,
        "config": {
            "vocab_size": 31, "hidden_size": 15, "num_attention_heads": 3, "kv_hidden_size": 4, "ff_hidden_size": 22,
            "num_layers": 2, "num_decoder_layers": 2, "max_position_embeddings": 13, "layernorm_epsilon": 1e-5,
            "hidden_act": "gelu", "hidden_bias": True, "cpm_pretrain_norms": True,
            "decoder_start_token_id": 3, "pad_token_id": 0,
        },
        **FROM_LABELS,
    },
}

FAMILY = Family(
    off={"hidden_dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0},
    models=MODELS,
    is_norm=lambda name: "layernorm" in name,
)

if __name__ == "__main__":
    main(FAMILY)
