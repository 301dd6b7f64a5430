"""Golden data for the program `evaluate`: tiny models of gpt2_a and bert_a on files in the published formats, in
64-bit floats, and texts that are detokenised by regular expressions.

Writes crates/model-center/tests/golden/evaluate: the files, the vocabulary of both models, and expected.json. Each
token is scored by a forward pass of its own on exactly its context. The data are committed; run this only to change
them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_evaluate.py            # writes the files
    "$python" scripts/golden/make_evaluate.py --check    # recomputes them and compares with the committed files
"""

import json
import math
import re

import torch
from transformers import BertForMaskedLM, BertTokenizerFast, GPT2LMHeadModel

from goldens import DEFAULT_OUT, in_64_bits, run

SIZE = 97
WORDS = """the a film was is it in of to and not very plot cast end good bad fine poor man ball park sun rain bank money
river he she they him her question answer yes no cause effect
. , : ; ! ? " ' ( ) [ ] = - @ ##s ##ed ##ing 1 2 3 0 N""".split()

WIKI = """ = = The film = =

 The film was good , and the plot was fine ; he was in the park .
 It was 1 @,@ 200 @-@ page ( in 3 @.@ 5 parts ) : " a very good film " , and N of them 's end .
"""
PASSAGES = ["the film was very good and the plot was not the end", "he was in the park and she was in\tthe ball",
            "it was the sun and the rain of the river bank"]
REQUESTS = [
    {"id": 1, "prompt": "the film was", "continuation": " very good"},
    {"id": 2, "prompt": "the film was ", "continuation": "not a fine plot ."},
    {"id": 3, "prompt": "", "continuation": "the end"},
    {"id": 4, "prompt_ids": [2, 7, 9, 11], "continuation_ids": [20, 21]},
    {"id": 5, "prompt": "the film was good and the plot was fine and he was in the park and it was",
     "continuation": " the end ."},
]
LINES = ["the film was very good .", "he was not in the park", "yes"]
MASKED = [{"input_ids": [2, 10, 4, 12, 3], "labels": [-100, -100, 30, -100, -100]},
          {"input_ids": [2, 4, 4, 15, 16, 17, 3], "labels": [-100, 21, 22, -100, 40, -100, -100]}]

DETOKENISED = [
    WIKI,
    " = = = Gameplay = = = \n The game 's \" A ( b ) \" , called [ 1 ] , costs 2 @,@ 500 ;"
    " it is { odd } . ' Yes ' ? no ! 45 ° N \n",
    "unbalanced ( text \" with ' marks : and the boys ' dogs , s 'more N times",
]


def vocabulary():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = special + WORDS
    return words + [f"[unused{i}]" for i in range(SIZE + 4 - len(words))]


def wikitext(text):
    """The published rules, as regular expressions."""
    for pattern, by in [(r"s '", "s'"), (" @-@ ", "-"), (" @,@ ", ","), (r" @\.@ ", "."), (r" ([:;.!?,]) ", r"\1 ")]:
        if pattern.startswith(r" (["):
            for mark in ":;.!?,":
                text = re.sub(f" {re.escape(mark)} ", f"{mark} ", text)
            continue
        text = re.sub(pattern, by, text)
    for opening, closing in ["()", "[]", "{}", '""', "''"]:
        inside = f"[^{re.escape(closing)}]*?"
        pattern = rf"{re.escape(opening)}\s*({inside})\s*{re.escape(closing)}"
        text = re.sub(pattern, lambda found, o=opening, c=closing: o + found[1] + c, text)
    for old, new in [("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" ° ", "°"), (" \n", "\n"), ("\n ", "\n"),
                     (" N ", " 1 "), (" 's", "'s")]:
        text = text.replace(old, new)
    return text


def log_probs(model, context):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([context])).logits[0, -1], dim=-1)


def window_loss(model, tokens, length, stride):
    """The mean loss of all tokens but the first, each with the context that its window gives it."""
    total = 0.0
    for target in range(1, len(tokens)):
        window = max(0, math.ceil((target - length) / stride)) * stride
        total -= log_probs(model, tokens[window:target])[tokens[target]].item()
    return total / (len(tokens) - 1)


def score(model, context, continuation, length):
    """Log-probability of each token of a continuation, and whether it is the most probable one."""
    scores = []
    start = max(0, len(context) + len(continuation) - 1 - length)
    tokens = context + continuation
    for target in range(max(len(context), start + 1), len(tokens)):
        predicted = log_probs(model, tokens[start:target])
        scores.append((predicted[tokens[target]].item(), int(predicted.argmax()) == tokens[target]))
    return scores


def masked_losses(model, ids, labels):
    with torch.no_grad():
        predicted = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    return [-predicted[at, label].item() for at, label in enumerate(labels) if label != -100]


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def split(tokenizer, context, continuation):
    before = encode(tokenizer, context.rstrip())
    whole = encode(tokenizer, context + continuation)
    return [tokenizer.cls_token_id] + whole[:len(before)], whole[len(before):]


def decoder_figures(model, tokenizer):
    text = wikitext(WIKI)
    tokens = [tokenizer.cls_token_id] + encode(tokenizer, text)
    words, size = len(WIKI.strip().split(" ")), len(WIKI.strip().encode())
    perplexity = []
    for length, stride in [(8, 8), (8, 3), (19, 1)]:
        loss = window_loss(model, tokens, length, stride)
        scored = len(tokens) - 1
        perplexity.append({"length": length, "overlap": stride, "tokens": len(tokens), "words": words, "loss": loss,
                           "word_perplexity": math.exp(loss * scored / (words - 1)),
                           "bits_per_byte": loss * scored / math.log(2) / size})
    passages = [text.split() for text in PASSAGES]
    scores = [score(model, *split(tokenizer, " ".join(words[:-1]), " " + words[-1]), 19) for words in passages]
    word_losses = [-sum(p for p, _ in one) for one in scores]
    lambada = {"passages": len(scores),
               "last_token_accuracy": sum(one[-1][1] for one in scores) / len(scores),
               "strict_accuracy": sum(all(right for _, right in one) for one in scores) / len(scores),
               "word_perplexity": math.exp(sum(word_losses) / len(scores))}
    likelihood = []
    for request in REQUESTS:
        if "prompt_ids" in request:
            context, continuation = request["prompt_ids"], request["continuation_ids"]
        else:
            context, continuation = split(tokenizer, request["prompt"], request["continuation"])
        one = score(model, context, continuation, 19)
        likelihood.append({"id": request["id"], "continuation_ids": continuation,
                           "token_log_probs": [p for p, _ in one], "is_greedy": all(right for _, right in one)})
    return {"perplexity": perplexity, "lambada": lambada, "likelihood": likelihood}


def encoder_figures(model, tokenizer):
    pseudo = []
    for line in LINES:
        ids = tokenizer(line)["input_ids"]
        for at in range(1, len(ids) - 1):
            masked = ids[:at] + [tokenizer.mask_token_id] + ids[at + 1:]
            pseudo += masked_losses(model, masked, [-100] * at + [ids[at]] + [-100] * (len(ids) - at - 1))
    given = [loss for row in MASKED for loss in masked_losses(model, row["input_ids"], row["labels"])]
    return {name: {"masked_tokens": len(losses), "loss": sum(losses) / len(losses)}
            for name, losses in (("pseudo", pseudo), ("given", given))}


def with_greedy_cases(model, tokenizer):
    """Requests whose continuation greedy decoding writes, wholly and in part, and a passage whose last word it does."""
    context, written = [2, 7, 9, 11], []
    for _ in range(2):
        written.append(int(log_probs(model, context + written).argmax()))
    REQUESTS.append({"id": 6, "prompt_ids": context, "continuation_ids": written})
    REQUESTS.append({"id": 7, "prompt_ids": context, "continuation_ids": [written[0], (written[1] + 1) % SIZE]})
    whole = [word for word in WORDS if not word.startswith("##") and word.lower() == word]
    for first in whole:
        for second in whole:
            before = [tokenizer.cls_token_id] + encode(tokenizer, f"{first} {second}")
            word = tokenizer.convert_ids_to_tokens(int(log_probs(model, before).argmax()))
            if word in whole:
                PASSAGES.append(f"{first} {second} {word}")
                return
    raise SystemExit("no context of two words is continued by a word")


def write(out):
    directory = out / "evaluate"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.txt").write_text("\n".join(vocabulary()) + "\n")
    (directory / "wiki.test.tokens").write_text(WIKI)
    (directory / "lines.txt").write_text("\n".join(LINES) + "\n")
    words = vocabulary()
    tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}, do_lower_case=True)
    assert encode(tokenizer, "the film") == [words.index("the"), words.index("film")]
    with in_64_bits():
        decoder, encoder = (kind.from_pretrained(DEFAULT_OUT / name, attn_implementation="eager").double().eval()
                            for kind, name in ((GPT2LMHeadModel, "gpt2_a/lm"), (BertForMaskedLM, "bert_a/mlm")))
        with_greedy_cases(decoder, tokenizer)
        expected = decoder_figures(decoder, tokenizer) | {"mlm": encoder_figures(encoder, tokenizer)}
    for name, rows in [("lambada", [{"text": text} for text in PASSAGES]), ("requests", REQUESTS), ("masked", MASKED)]:
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected["detokenised"] = [{"text": text, "plain": wikitext(text)} for text in DETOKENISED]
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    run(__doc__, write)
