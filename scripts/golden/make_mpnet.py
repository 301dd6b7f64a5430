"""Golden data for MPNet: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/mpnet_a and mpnet_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_mpnet.py            # writes the directories
    "$python" scripts/golden/make_mpnet.py --check    # recomputes them and compares with the committed files
"""

import transformers

from encoders import Family, main

HEADS = {
    "cls": transformers.MPNetForSequenceClassification,
    "mlm": transformers.MPNetForMaskedLM,
    "tokens": transformers.MPNetForTokenClassification,
}
# The gradients of the other one are too small beside the rounding of sums over a softmax, which cancel.
SPANS = {"qa": transformers.MPNetForQuestionAnswering}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Longer than the eight distances that have a range each, either way.
    "mpnet_a": {
        "heads": HEADS,
        "seed": 611,
        "labels": 2,
        "config": {
            "vocab_size": 37, "hidden_size": 12, "num_attention_heads": 4, "intermediate_size": 16,
            "num_hidden_layers": 2, "max_position_embeddings": 25, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
        },
        # Right padding: a full row, lengths between, and a row of one token.
        "masks": ["#####################", "#############........", "#...................."],
        # Positions count it as a token, though nothing attends to it.
        "masked_tokens": [(1, 15)],
    },
    "mpnet_b": {
        "heads": HEADS | SPANS,
        "seed": 623,
        "labels": 5,
        "config": {
            "vocab_size": 29, "hidden_size": 9, "num_attention_heads": 3, "intermediate_size": 14,
            "num_hidden_layers": 3, "max_position_embeddings": 13, "hidden_act": "relu", "layer_norm_eps": 1e-12,
            "pad_token_id": 1,
        },
        # A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
        "masks": ["#########", "#####....", "...######", "####..###", "....#...."],
        "masked_tokens": [(2, 1), (3, 4)],
    },
}

if __name__ == "__main__":
    kind = transformers.MPNetConfig
    main(Family(models={name: spec | {"kind": kind} for name, spec in MODELS.items()}))
