"""Golden data for Mistral: writes mistral_a and mistral_b. decoders.py describes them and how to run this script."""

from transformers import MistralConfig, MistralForCausalLM, MistralForSequenceClassification

from decoders import like_llama, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # A window of fewer keys than rows are long, shorter than the padding and the hole of some; heads that are not D / N
    # long.
    "mistral_a": {
        "seed": 71,
        "labels": 3,
        "config": {
            "vocab_size": 53, "hidden_size": 22, "intermediate_size": 31, "num_hidden_layers": 2,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "sliding_window": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 30.0},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##......###"],
    },
    # No window; one key head for all; stretched positions.
    "mistral_b": {
        "seed": 73,
        "labels": 1,
        "config": {
            "vocab_size": 37, "hidden_size": 18, "intermediate_size": 23, "num_hidden_layers": 3,
            "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "sliding_window": None,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 20.0, "factor": 2.5},
        },
        "masks": ["#############", "########.....", ".....########", "#######..####", ".......#....."],
    },
}

if __name__ == "__main__":
    main(like_llama(MistralConfig, MistralForCausalLM, MistralForSequenceClassification, MODELS))
