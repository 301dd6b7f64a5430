"""Golden data for OLMo 3: writes olmo3_a and olmo3_b. decoders.py describes them and how to run this script."""

from transformers import Olmo3Config, Olmo3ForCausalLM, Olmo3ForSequenceClassification

from decoders import two_heads, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Windows in three of four layers, as where a file is silent, with other angles than in the last one.
    "olmo3_a": {
        "seed": 269,
        "labels": 3,
        "config": {
            "vocab_size": 37, "hidden_size": 14, "intermediate_size": 19, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-2, "pad_token_id": 0, "sliding_window": 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "rope_theta": 20.0, "factor": 4.0,
                                   "original_max_position_embeddings": 10},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            },
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # Listed layers; biases; as many key heads; one base.
    "olmo3_b": {
        "seed": 271,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "attention_bias": True, "sliding_window": 4,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    main(two_heads(Olmo3Config, Olmo3ForCausalLM, Olmo3ForSequenceClassification, MODELS))
