"""Golden data for CPM-2: tiny seeded models of cpm.py, evaluated in 64-bit floats; transformers has none.

Writes crates/model-center/tests/golden/cpm2_a and cpm2_b; crates/model-center/tests/golden/README.md describes every
file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_cpm2.py            # writes the directories
    "$python" scripts/golden/make_cpm2.py --check    # recomputes them and compares with the committed files
"""

from functools import partial

from cpm import Cpm2, configuration
from seq2seq import FROM_LABELS, SPELLED_OUT, Family, main

KIND = (Cpm2, partial(configuration, "cpm2"))

# Shapes that share no size, so that a transposed or mixed-up axis cannot pass all.
MODELS = {
    # As the published model: both scales, weights of variance one; the decoder reads what it is given.
    "cpm2_a": {
        "kind": KIND,
        "seed": 91,
        "tied": False,
        "deviation": 1.0,
        "config": {
            "vocab_size": 43, "dim_model": 18, "num_heads": 3, "dim_head": 5, "dim_ff": 26, "num_encoder_layers": 2,
            "num_decoder_layers": 1, "position_bias_num_buckets": 12, "position_bias_max_distance": 8, "norm_eps": 1e-6,
            "emb_init_std": 1.0, "ffn_activate_fn": "gated_gelu", "length_scale": True, "attn_scale": True,
        },
        **SPELLED_OUT,
    },
    # Nothing is scaled; decoder inputs are made from the labels.
    "cpm2_b": {
        "kind": KIND,
        "seed": 93,
        "tied": False,
        "config": {
            "vocab_size": 37, "dim_model": 20, "num_heads": 2, "dim_head": 7, "dim_ff": 15, "num_encoder_layers": 1,
            "num_decoder_layers": 2, "position_bias_num_buckets": 8, "position_bias_max_distance": 5, "norm_eps": 1e-3,
            "emb_init_std": 0.02, "ffn_activate_fn": "gated_gelu", "length_scale": False, "attn_scale": False,
            "decoder_start_token_id": 5, "pad_token_id": 0,
        },
        **FROM_LABELS,
    },
}

FAMILY = Family(
    off={},
    models=MODELS,
    is_norm=lambda name: "layernorm" in name,
)

if __name__ == "__main__":
    main(FAMILY)
