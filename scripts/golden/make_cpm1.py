"""Golden data for CPM-1: writes cpm1_a, cpm1_b and cpm1_c. decoders.py describes them and how to run this script; the
models are come from cpm.py, since transformers has none.
"""

from functools import partial

from cpm import Cpm1, configuration
from decoders import MIXED, RIGHT, Family, main, three_heads

# Shapes that share no size, so that a transposed or mixed-up axis cannot pass all.
MODELS = {
    # As the published model: both scales, weights of variance one.
    "cpm1_a": {
        "seed": 81,
        "labels": 3,
        "deviation": 1.0,
        "config": {
            "vocab_size": 47, "dim_model": 18, "num_heads": 3, "dim_head": 5, "dim_ff": 26, "num_layers": 2,
            "position_bias_num_buckets": 12, "position_bias_max_distance": 8, "norm_eps": 1e-6, "emb_init_std": 1.0,
            "ffn_activate_fn": "gated_gelu", "length_scale": True, "attn_scale": True,
        },
        "masks": RIGHT,
        # A context at the beginning, one before each of two spans, one of a single token, one with a hole.
        "context": ["1111.......", "1..11......", "1..........", "11..11....."],
        "span": ["00000000000", "00011111111", "00000000000", "22222222200"],
    },
    # Nothing is scaled, and nothing is context: every token sees those before it.
    "cpm1_b": {
        "seed": 83,
        "labels": 1,
        "config": {
            "vocab_size": 39, "dim_model": 20, "num_heads": 4, "dim_head": 7, "dim_ff": 17, "num_layers": 3,
            "position_bias_num_buckets": 8, "position_bias_max_distance": 5, "norm_eps": 1e-3, "emb_init_std": 0.02,
            "ffn_activate_fn": "gated_relu", "length_scale": False, "attn_scale": False,
        },
        "masks": MIXED,
    },
    # Several texts in a row, and no context.
    "cpm1_c": {
        "seed": 87,
        "labels": 2,
        "heads": ["lm"],
        "config": {
            "vocab_size": 31, "dim_model": 11, "num_heads": 2, "dim_head": 6, "dim_ff": 23, "num_layers": 1,
            "position_bias_num_buckets": 6, "position_bias_max_distance": 7, "norm_eps": 1e-6, "emb_init_std": 0.02,
            "ffn_activate_fn": "gelu", "length_scale": True, "attn_scale": False,
        },
        "masks": ["#########", "..#######", "##.###.##"],
        "span": ["000112222", "000055555", "777788888"],
    },
}

FAMILY = Family(
    config=partial(configuration, "cpm1"),
    off={},
    heads=three_heads(Cpm1, Cpm1),
    models=MODELS,
    is_norm=lambda name: "layernorm" in name,
)

if __name__ == "__main__":
    main(FAMILY)
