"""The loss mask of conversations against offsets in the text that transformers renders.

    python loss_mask.py DATA TEMPLATES SCRATCH

For each of the templates below, a tokenizer with the control tokens of its model is made, and conversations are
rendered and tokenized by transformers. A token is the assistant's if it has a character of an answer or of the text
that ends a turn of that template. `data preview --json`, a program of this repository, states ids and labels
for the same conversations in the same directory: ids and mask have to be equal for every token.

The last line on stdout is `loss-mask FIGURES ok|short`, exit status 0 or 1.
"""

import argparse
import json
import random
import re
import subprocess
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CONVERSATIONS = 60
# The file of each template, what ends a turn of the assistant and the whole conversation, BOS and EOS.
TEMPLATES = {
    "Qwen-Qwen2.5-7B-Instruct": ("<|im_end|>", "", None, "<|im_end|>"),
    "Qwen-Qwen3-0.6B": ("<|im_end|>", "", None, "<|im_end|>"),
    "HuggingFaceTB-SmolLM3-3B": ("<|im_end|>", "", None, "<|im_end|>"),
    "meta-llama-Llama-3.1-8B-Instruct": ("<|eot_id|>", "", "<|begin_of_text|>", "<|eot_id|>"),
    "google-gemma-2-2b-it": ("<end_of_turn>", "", "<bos>", "<eos>"),
    "microsoft-Phi-3.5-mini-instruct": ("<|end|>", "\n<|endoftext|>", "<s>", "<|endoftext|>"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("</s>", "", "<s>", "</s>"),
    "ibm-granite-granite-3.3-2B-Instruct": ("<|end_of_text|>", "", None, "<|end_of_text|>"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B":
        ("<｜end▁of▁sentence｜>", "", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
}
# A template that marks the assistant's output, for which transformers states the mask.
MARKED = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' -%}
{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else -%}
{{ message.content + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
"""
# Before the text of the last answer, where a template writes something that a model has to write as well.
BEFORE_LAST = {"Qwen-Qwen3-0.6B": "<think>\n\n</think>\n\n"}
CONTROL = re.compile(r"<\|[a-z_]+\|>|<｜[^<>｜]+｜>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]|<bos>|<eos>")
PARTS = ("river", "counts", "seven", "the", "of", "answer", "naïve", "北京", "is", "42", "x = y + 1", "“so”", "🙂")


def conversation(rng, number):
    """Turns of a user and an assistant; texts differ, so that each is found at one place."""

    def text(role, at):
        parts = [rng.choice(PARTS) for _ in range(rng.randint(1, 12))]
        if len(parts) > 6:
            parts[3] += rng.choice([",", ".", ":\n\n-", "\n"])
        return f"{role.capitalize()} {number}-{at}: {' '.join(parts)}{rng.choice(['.', '!', '', '?'])}"

    roles = ["user", "assistant"] * rng.randint(1, 4)
    return [{"role": role, "content": text(role, at)} for at, role in enumerate(roles)]


def tokenizer(template, directory, bos, eos, texts):
    """A byte-level tokenizer with the template's control tokens, as a directory."""
    control = sorted(set(CONTROL.findall(template)) | {token for token in (bos, eos) if token})
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(texts, trainer)
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    names = {name: token for name, token in (("bos_token", bos), ("eos_token", eos)) if token}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    fast.chat_template = template
    fast.save_pretrained(directory)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": len(fast), "hidden_size": 16,
              "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
              "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    (directory / "config.json").write_text(json.dumps(config))
    return fast


def reference(fast, messages, name, end, last):
    """Ids, and whether each token is the assistant's."""
    if end is None:
        stated = fast.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return stated["input_ids"], [mask == 1 for mask in stated["assistant_masks"]]
    text = fast.apply_chat_template(messages, tokenize=False)
    spans, at = [], 0
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    for number in answers:
        is_last = number == answers[-1]
        before = BEFORE_LAST.get(name, "") if is_last else ""
        answer = before + messages[number]["content"] + end + (last if is_last else "")
        start = text.index(answer, at)
        at = start + len(answer)
        spans.append((start, at))
    encoded = fast(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = [any(a < to and fro < b for a, b in spans) for fro, to in encoded["offset_mapping"]]
    return encoded["input_ids"], mask


def ours(program, directory, scratch):
    """The same as `data preview` states them."""
    settings = ["data.task=sft", f"data.train={scratch / 'chats.jsonl'}", f"model.path={directory}",
                "model.init=random", "train.steps=1", "train.batch_size=1", f"output.dir={scratch / 'run'}",
                "data.max_length=4096"]
    command = [str(program), "preview", str(CONVERSATIONS), "--json", *settings]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    samples = [json.loads(line) for line in done.stdout.splitlines()][:-1]
    return [(sample["input_ids"], [label != -100 for label in sample["labels"]]) for sample in samples]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="our data program")
    parser.add_argument("templates", type=Path, help="the directory of the templates")
    parser.add_argument("scratch", type=Path, help="a directory for files")
    arguments = parser.parse_args()
    rng = random.Random(7)
    chats = [conversation(rng, number) for number in range(CONVERSATIONS)]
    lines = "".join(json.dumps({"messages": chat}, ensure_ascii=False) + "\n" for chat in chats)
    (arguments.scratch / "chats.jsonl").write_text(lines)
    texts = [message["content"] for chat in chats for message in chat]
    right, tokens, learned = 0, 0, 0
    templates = {name: (arguments.templates / f"{name}.jinja").read_text() for name in TEMPLATES}
    forms = TEMPLATES | {"marked": (None, "", None, "<|im_end|>")}
    for name, (end, last, bos, eos) in forms.items():
        template = templates.get(name, MARKED)
        directory = arguments.scratch / name
        fast = tokenizer(template, directory, bos, eos, texts)
        expected = [reference(fast, chat, name, end, last) for chat in chats]
        found = ours(arguments.data, directory, arguments.scratch)
        wrong = sum(1 for ours, theirs in zip(found, expected, strict=True) if ours != theirs)
        print(f"{name}: {len(chats) - wrong} of {len(chats)} conversations", file=sys.stderr)
        for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            if mine != theirs:
                show = lambda ids, mask: fast.decode([i for i, m in zip(ids, mask) if m])  # noqa: E731
                print(f"  {number}: {show(*mine)!r}\n  not {show(*theirs)!r}", file=sys.stderr)
                break
        right += wrong == 0
        tokens += sum(len(ids) for ids, _ in expected)
        learned += sum(sum(mask) for _, mask in expected)
    outcome = "ok" if right == len(forms) else "short"
    print(f"loss-mask {right}/{len(forms)} templates,{learned} of {tokens} tokens learned {outcome}")
    sys.exit(outcome != "ok")


if __name__ == "__main__":
    main()
