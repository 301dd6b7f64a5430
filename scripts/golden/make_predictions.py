"""Golden data for predictions: writes `predictions`, tiny models with heads and their tokenizers, and what the
pipelines of transformers predict with them.

crates/model-center/tests/golden/README.md describes every file. The data are committed; run this only to change them:

    "$(scripts/python_env.sh)" scripts/golden/make_predictions.py            # or with --check
"""

import json

import torch
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (BertConfig, BertForQuestionAnswering, BertForSequenceClassification,
                          BertForTokenClassification, PreTrainedTokenizerFast, RobertaConfig,
                          RobertaForTokenClassification, pipeline)

from goldens import initialize_weights, run

WORDS = ("the film was good bad fine and very plot cast river bank in paris london ann lee smith went to where did "
         "go who saw . , ? - ' ##s ##ing see walk").split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["the film was good", "bad", "the plot was fine , and the cast very bad .", "Walking in Paris"]
PAIRS = [["the film", "was good"], ["ann lee went to paris", "bad bank"]]
SENTENCES = ["Ann Lee went to Paris.", "the cast , Smith's , was good - very good", "London",
             "who saw Ann-Lee walking?"]
QUESTIONS = [
    ["where did ann go ?", "the film was good . Ann Lee went to Paris , and Smith went to London ."],
    ["who went ?", "Smith went to the river bank . " * 6 + "Ann Lee saw the film in London ."],
    ["who was good ?", "Smith"],
]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SIZES = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def is_norm(name):
    return "LayerNorm" in name


def word_pieces():
    vocabulary = {token: at for at, token in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]",
                                   model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def byte_pairs():
    tokenizer = ByteLevelBPETokenizer(add_prefix_space=False)
    tokenizer.train_from_iterator([*SENTENCES * 3, *TEXTS], vocab_size=330, min_frequency=1, show_progress=False,
                                  special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer = tokenizer._tokenizer
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", cls_token="<s>",
                                   sep_token="</s>", mask_token="<mask>", bos_token="<s>", eos_token="</s>")


def bert(tokenizer, kind, seed, **settings):
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, attn_implementation="eager", **SIZES,
                        **settings)
    model = kind(config).eval()
    initialize_weights(model, seed, is_norm, deviation=0.5)
    return model


def roberta(tokenizer, seed, **settings):
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=66, type_vocab_size=1, pad_token_id=1,
                           bos_token_id=0, eos_token_id=2, attn_implementation="eager", **SIZES, **settings)
    model = RobertaForTokenClassification(config).eval()
    initialize_weights(model, seed, is_norm, deviation=0.5)
    return model


def named(names):
    return {"id2label": dict(enumerate(names)), "label2id": {name: at for at, name in enumerate(names)}}


def classes(model, tokenizer):
    """All classes of each text and pair, as the pipeline scores them."""
    predict = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None, device="cpu")
    inputs = [{"text": text} for text in TEXTS] + [{"text": first, "text_pair": second} for first, second in PAIRS]
    found = [predict(one) for one in inputs]
    return [{"input": one, "scores": {label["label"]: label["score"] for label in labels}}
            for one, labels in zip(inputs, found)]


def entities(model, tokenizer):
    predict = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first",
                       device="cpu")
    return [{"input": {"text": text},
             "entities": [{name: float(value) if name == "score" else value for name, value in one.items()}
                          for one in predict(text)]} for text in SENTENCES]


def answers(model, tokenizer):
    """By the rule of the example for question answering: the largest sum of two logits in the passage of any window,
    the end not before the start and at most 30 tokens in all; with the probabilities of the two tokens, and whether the
    first token, which stands for no answer, has a larger sum in every window."""
    found = []
    for question, passage in QUESTIONS:
        encoded = tokenizer(question, passage, truncation="only_second", max_length=32, stride=8,
                            return_overflowing_tokens=True, return_offsets_mapping=True, padding=True,
                            return_tensors="pt")
        best, none = None, float("inf")
        for row in range(len(encoded["input_ids"])):
            one = {name: encoded[name][row:row + 1] for name in ("input_ids", "attention_mask", "token_type_ids")}
            with torch.no_grad():
                outputs = model(**one)
            positions = [at for at, kind in enumerate(encoded.sequence_ids(row)) if kind == 1]
            chosen = [0, *positions]
            starts, ends = (logits[0].double() for logits in (outputs.start_logits, outputs.end_logits))
            none = min(none, (starts[0] + ends[0]).item())
            start_p, end_p = (logits[chosen].softmax(0) for logits in (starts, ends))
            for start in positions:
                for end in positions:
                    score = (starts[start] + ends[end]).item()
                    if start <= end < start + 30 and (best is None or score > best[0]):
                        probability = (start_p[chosen.index(start)] * end_p[chosen.index(end)]).item()
                        offsets = encoded["offset_mapping"][row]
                        best = (score, probability, offsets[start][0].item(), offsets[end][1].item())
        score, probability, start, end = best
        found.append({"input": {"question": question, "context": passage}, "answer": passage[start:end], "start": start,
                      "end": end, "score": probability, "is_none_likelier": none > score})
    return found


def write_all(out):
    pieces, pairs = word_pieces(), byte_pairs()
    cases = {
        "classes": (pieces, bert(pieces, BertForSequenceClassification, 1, **named(["poor", "fair", "good"])), classes),
        "labels": (pieces, bert(pieces, BertForSequenceClassification, 2, problem_type="multi_label_classification",
                                **named(["film", "place", "person"])), classes),
        "number": (pieces, bert(pieces, BertForSequenceClassification, 3, problem_type="regression", num_labels=1),
                   classes),
        "words": (pieces, bert(pieces, BertForTokenClassification, 4, **named(TAGS)), entities),
        "words_bytes": (pairs, roberta(pairs, 5, **named(TAGS)), entities),
        "answers": (pieces, bert(pieces, BertForQuestionAnswering, 8), answers),
    }
    for name, (tokenizer, model, predict) in cases.items():
        directory = out / "predictions" / name
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        expected = predict(model, tokenizer)
        lines = ",\n ".join(json.dumps(one) for one in expected)
        (directory / "expected.json").write_text(f"[{lines}]\n")


if __name__ == "__main__":
    run(__doc__, write_all)
