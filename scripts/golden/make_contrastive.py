"""Golden data for losses of embeddings: writes `contrastive`, the loss of pairs with mean pooling and of triplets with
the first token's hidden state, on a tiny BERT of other goldens, in 64-bit floats. The formula is from
sentence-transformers' MultipleNegativesRankingLoss.

crates/model-center/tests/golden/README.md describes every tensor. The data are committed; run the script only to change
them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_contrastive.py            # writes the directory
    "$python" scripts/golden/make_contrastive.py --check    # recomputes them and compares with the committed file
"""

import torch
from torch.nn.functional import cross_entropy, normalize
from transformers import BertModel

from goldens import DEFAULT_OUT, case_of, in_64_bits, run, write_cases

SAMPLES, LENGTH, BATCHES = 4, 9, 3
# By case: texts of a sample, the temperature, and whether the mean of the hidden states is the embedding.
CASES = {"pairs": (2, 0.2, True), "triplets": (3, 0.5, False)}


def batch_of(vocabulary, texts, generator):
    """Sequences of several lengths, padded on the right; the texts of a sample together."""
    rows = SAMPLES * texts
    ids = torch.randint(3, vocabulary, (rows, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(rows):
        length = int(torch.randint(2, LENGTH + 1, (1,), generator=generator))
        ids[row, length:], mask[row, length:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def embeddings_of(model, batch, is_mean):
    """The mean of the last hidden states, or the first one."""
    mask = batch["attention_mask"].unsqueeze(-1)
    hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    return (hidden * mask).sum(1) / mask.sum(1) if is_mean else hidden[:, 0]


def loss_of(embeddings, texts, temperature):
    """Scores of each anchor with all positives and then all negatives, as sentence-transformers has them."""
    by_text = normalize(embeddings, dim=-1).unflatten(0, (-1, texts))
    anchors, candidates = by_text[:, 0], torch.cat([by_text[:, text] for text in range(1, texts)])
    return cross_entropy(anchors @ candidates.T / temperature, torch.arange(len(anchors)))


def build():
    model = BertModel.from_pretrained(DEFAULT_OUT / "bert_a/mlm", attn_implementation="eager", add_pooling_layer=False)
    return model.double().train()


def is_norm(name):
    return "LayerNorm" in name


def write_all(out):
    generator = torch.Generator().manual_seed(823)
    cases = {}
    with in_64_bits():
        for case, (texts, temperature, is_mean) in CASES.items():
            batches = [batch_of(build().config.vocab_size, texts, generator) for _ in range(BATCHES)]

            def outputs_of(model, batch):
                embeddings = embeddings_of(model, batch, is_mean)
                return {"loss": loss_of(embeddings, texts, temperature), "embeddings": embeddings}

            cases[case] = case_of(build, batches, is_norm, outputs_of)
    write_cases(out, "contrastive", cases)


if __name__ == "__main__":
    run(__doc__, write_all)
