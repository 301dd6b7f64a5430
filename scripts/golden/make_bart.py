"""Golden data for BART: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/bart_a and bart_b; crates/model-center/tests/golden/README.md describes every
file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_bart.py            # writes the directories
    "$python" scripts/golden/make_bart.py --check    # recomputes them and compares with the committed files
"""

from transformers import BartConfig, BartForConditionalGeneration, BartForSequenceClassification

from seq2seq import FROM_LABELS, LIKE_BART, SPELLED_OUT, Family, main

KIND = (BartForConditionalGeneration, BartConfig)

# Shapes that share no size, so that a transposed or mixed-up axis cannot pass all.
MODELS = {
    # Scaled embeddings; decoder inputs that are made from the labels; three classes.
    "bart_a": {
        "kind": KIND,
        "seed": 83,
        "tied": True,
        "config": {
            "vocab_size": 47, "d_model": 18, "max_position_embeddings": 17, "encoder_layers": 2, "decoder_layers": 1,
            "encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 29, "decoder_ffn_dim": 23,
            "scale_embedding": True, "eos_token_id": 2,
        },
        "labels": 3,
        **FROM_LABELS,
    },
    # Another activation, another padding token; decoder inputs and their padding are given, and are as long as can be;
    # a number to predict.
    "bart_b": {
        "kind": KIND,
        "seed": 89,
        "tied": True,
        "config": {
            "vocab_size": 39, "d_model": 20, "max_position_embeddings": 10, "encoder_layers": 1, "decoder_layers": 2,
            "encoder_attention_heads": 4, "decoder_attention_heads": 5, "encoder_ffn_dim": 17, "decoder_ffn_dim": 31,
            "activation_function": "relu", "pad_token_id": 0, "decoder_start_token_id": 3,
            "eos_token_id": 5,
        },
        "labels": 1,
        **SPELLED_OUT,
    },
}

FAMILY = Family(models=MODELS, classifier=BartForSequenceClassification, **LIKE_BART)

if __name__ == "__main__":
    main(FAMILY)
