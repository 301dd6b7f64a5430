"""Golden data for OLMo 2: writes olmo2_a and olmo2_b. decoders.py describes them and how to run this script."""

from transformers import Olmo2Config, Olmo2ForCausalLM, Olmo2ForSequenceClassification

from decoders import two_heads, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Two query heads to a key head, so that the norms of queries and of keys are of different sizes; heads that are not
    # D / N long.
    "olmo2_a": {
        "seed": 227,
        "labels": 3,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # As many key heads; biases; stretched positions.
    "olmo2_b": {
        "seed": 229,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-2, "pad_token_id": 0, "attention_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0},
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    main(two_heads(Olmo2Config, Olmo2ForCausalLM, Olmo2ForSequenceClassification, MODELS))
