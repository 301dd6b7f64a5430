"""Golden data for the tokenizers of CPM-1, CPM-2 and EncDec: vocabularies, texts, and the ids that the rules give them.

The published vocabularies are not available. The ones made here have every kind of piece; the rules of ModelCenter's
CPM1Tokenizer and CPM2Tokenizer and of Yuan's EncDecTokenizer are implemented once more below, in the plainest
way: every length of every piece is tried. Words are cut by the jieba package.

    python3 -m venv ENV && ENV/bin/pip install jieba==0.42.1
    ENV/bin/python scripts/golden/make_cpm_tokenizer.py            # writes the directory cpm_tokenizer
    ENV/bin/python scripts/golden/make_cpm_tokenizer.py --check    # compares with the committed files
"""

import argparse
import filecmp
import json
import logging
import random
import sys
import tempfile
from pathlib import Path

import jieba

PINNED = "0.42.1"
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/cpm_tokenizer"

TEXTS = [
    "",
    " ",
    "\n",
    "今天天气很好，我们去公园散步吧。",
    "清华大学的研究人员在北京发布了一个中文预训练语言模型。",
    "他说：“这本书写得非常有意思！”",
    "武汉市长江边的人行道旁开了一家馆子",
    "乒乓球拍卖完了，他还没有学会计算机",
    "李雷和韩梅梅昨晚在图书馆查阅了量子计算的论文",
    "训练一个有 26 亿参数的模型，用了 64 块 V100 显卡。",
    "The model was trained on 64 GPUs in Beijing.",
    "a  b   c\n\n d\r\ne\tf",
    "中文 English 中文English混合 text文本",
    "版本号是 v1.2.3，占 50.5% 的 C++ 和 C# 用户",
    "WES-5.4.5 a_b_c x.y 1.5a 3-4 10% 5%% ..-- __ &&",
    "AT&T 的 T恤 做B超 卡拉OK",
    "电子邮件 someone@example.org 网址 http://example.org/a?b=1&c=2",
    "𠀀𠀁生僻字㐀㐁，鿖鿗，﨑",
    "表情😀和👨‍👩‍👧，韩文한국어，日文ひらがなカタカナ，русский",
    "ＡＢＣ１２３，！？（全角）「引号」『书名』　空格～〜",
    "字面的</_>和</n>以及▂和▃，还有<eod><pad><unk><s><s_0>",
    "零宽\u200b连接\u200d符，私用\ue000，控制\u0007",
    "二〇二六年十一月二十二日，星期日。",
    "一二三四五六七八九十百千万亿" * 3,
    "x" * 200 + " " + "y" * 201,
    "１" * 30,
    "hello world, hello again",
    "Hello,world ! ok",
    "中 国 a 中 b",
]


def words_of(text):
    return list(jieba.cut(text, cut_all=False))


def has_chinese(text):
    return any("\u4e00" <= c <= "\u9fff" for c in text)


def pieces_of(word, vocabulary, marks_continuations):
    """Spellings of the longest pieces from the left, by trying every length."""
    if len(word) > 200:
        return ["<unk>"]
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = word[start:end]
            if marks_continuations and start > 0 and not has_chinese(piece):
                piece = "##" + piece
            if piece in vocabulary:
                pieces.append(piece)
                start = end
                break
        else:
            pieces.append("<unk>")
            start += 1
    return pieces


FULL = "＂＇＾｀，：；？！（）｛｝［］＜＞｜＼＿＄％＃＆＠＝＊／＋－．" + "".join(
    chr(ord(c) + 0xFEE0) for c in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
HALF = {c: chr(ord(c) - 0xFEE0) for c in FULL} | dict(zip("〔〕〜『』。、「」", "[]~‘’｡､｢｣"))
# The one intended difference: a full-width space is a space here, and an unknown token by the rule.
HALF["\u3000"] = "\ufff2"


def encode_cpm(text, vocabulary, space, newline, half_width):
    for written, by in (("\n", "\ufff3"), (newline, "\ufff3"), (" ", "\ufff2"), (space, "\ufff2")):
        text = text.replace(written, by)
    known = set(vocabulary) | {"\ufff2", "\ufff3"}
    pieces = []
    for word in words_of(text):
        if half_width:
            word = "".join(HALF.get(c, c) for c in word)
        pieces += pieces_of(word, known, False)
    return [vocabulary[{"\ufff2": space, "\ufff3": newline}.get(piece, piece)] for piece in pieces]


def encode_enc_dec(text, vocabulary):
    pieces = []
    for word in words_of(text):
        pieces += pieces_of(word.replace(" ", "▂").replace("\n", "▃"), vocabulary, True)
    kept = []
    for at, piece in enumerate(pieces):
        inside = 0 < at < len(pieces) - 1
        foreign = inside and all(p != "▂" and not has_chinese(p) for p in (pieces[at - 1], pieces[at + 1]))
        if not (piece == "▂" and foreign):
            kept.append(piece)
    return [vocabulary[piece] for piece in kept]


def vocabularies():
    """Tokens of each kind in the order of their ids: special ones, characters, words, pieces of Latin words."""
    characters = sorted({c for text in TEXTS for c in text if not c.isspace() and ord(c) < 0x10000})
    # Some characters are unknown, some words are there whole, some in part, and some pieces go beyond a word.
    chosen = random.Random(7)
    left = [c for c in characters if chosen.random() < 0.85]
    words = sorted({word for text in TEXTS for word in words_of(text) if 1 < len(word) <= 9 and not word.isspace()})
    words = [word for word in words if chosen.random() < 0.6]
    more = ["大学", "长江", "江边", "语言模型", "的研", "一二", "一二三四", "xx", "xxxxxxxx", "Eng", "ish", "el", "llo"]
    latin = ["a", "b", "the", "trained", "model", "hello", "world", "text", "er", "ing", "am", "ple", "org", "12",
             "5.4", "100", "T恤"]
    plain = [piece for piece in dict.fromkeys(left + words + more + latin) if piece not in ("▂", "▃")]
    sentinels = [f"<s_{number}>" for number in range(190)]
    continued = ["##" + piece for piece in ["l", "lo", "o", "ing", "s", "ish", "ple", "xx", "x", "2", "00", "K"]]
    return {
        "cpm1": ["<unk>", "<pad>", "<eod>", "</_>", "</n>", *plain],
        "cpm2": ["<pad>", "<unk>", "<s>", "<eod>", *plain, "▂", "▃", *sentinels],
        # The space is token 10 there.
        "enc_dec": ["<pad>", "<unk>", "<eod>", *plain[:7], "▂", "▃", *plain[7:], *continued, *sentinels],
    }


def write(out):
    for kind, tokens in vocabularies().items():
        directory = out / kind
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "vocab.txt").write_text("".join(token + "\n" for token in tokens), encoding="utf-8")
        vocabulary = {token: number for number, token in enumerate(tokens)}
        space, newline = ("</_>", "</n>") if kind == "cpm1" else ("▂", "▃")
        cases = []
        for text in TEXTS:
            if kind == "enc_dec":
                cases.append({"text": text, "ids": encode_enc_dec(text, vocabulary)})
            else:
                ids, narrow = (encode_cpm(text, vocabulary, space, newline, half) for half in (False, True))
                cases.append({"text": text, "ids": ids, "half_width_ids": narrow})
        lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
        (directory / "cases.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    words = ",\n".join(json.dumps(words_of(text), ensure_ascii=False) for text in TEXTS)
    (out / "words.json").write_text(f"[\n{words}\n]\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    if jieba.__version__ != PINNED:
        sys.exit(f"the goldens were made with jieba {PINNED}, this environment has {jieba.__version__}")
    jieba.setLogLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) if arguments.check else arguments.out
        write(made)
        if arguments.check:
            names = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
            _, differing, absent = filecmp.cmpfiles(made, arguments.out, names, shallow=False)
            if differing or absent:
                sys.exit(f"other bytes than committed: {differing + absent}")
            print(f"{len(names)} files equal")


if __name__ == "__main__":
    main()
