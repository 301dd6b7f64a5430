"""Golden data for Ministral: writes ministral_a and ministral_b. decoders.py describes them and how to run this."""

from transformers import MinistralConfig, MinistralForCausalLM, MinistralForSequenceClassification

from decoders import two_heads, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Listed layers; heads that are not D / N long.
    "ministral_a": {
        "seed": 307,
        "labels": 3,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # Windows in all layers, as where a file is silent; as many key heads; stretched angles.
    "ministral_b": {
        "seed": 311,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "sliding_window": 4,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0},
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    main(two_heads(MinistralConfig, MinistralForCausalLM, MinistralForSequenceClassification, MODELS))
