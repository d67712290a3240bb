# SPDX-License-Identifier: MIT
"""make_oracle.py - writes words.jsonl and spm.jsonl: expected splits and ids from the PyPI package `tokenizers`.

usage: make_oracle.py VOCAB_FOLDER   (ggml-vocab-llama-spm.gguf; needs `pip install tokenizers gguf`)
words.jsonl: {"pre", "text", "words"}: the published splitting expression of each family, run by the Oniguruma engine of
`tokenizers`. spm.jsonl: {"text", "special", "ids"}: the llama-spm vocabulary converted as transformers converts a SentencePiece
model (merges from scores, Prepend and Replace normalizer, byte fallback). Both were made with tokenizers 0.23.3 on Python 3.11.
"""
import json
import pathlib
import random
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

HERE = pathlib.Path(__file__).parent
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + SUFFIX + "?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + SUFFIX + "?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
FAMILIES = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "gpt-2": BYTES,
    "llama-bpe": split(LLAMA3 % r"\p{N}{1,3}"),
    "qwen2": split(LLAMA3 % r"\p{N}"),
    "llama4": split(GPT4O),
}
TEXTS = [
    "Hello world", " Hello  world   three", "I'm you're we'll they've it'd CAN'T He'S O'Reilly 'tis",
    "ÉCOLE École naïveÉ ПриветМир XMLHttpRequest camelCase iPhone's ΑΒΓαβγ", "1234567890 3.14159 1,000,000 ½ ²³ ٣٤٥ Ⅷ",
    "def f(x):\n    return x**2  # comment\n\n\n", "a\r\nb\r\n\r\n  c\n \n d", "\ttab\t\tsep \t x", "path/to//file/// end/\n/",
    "日本語のテキスト、漢字とかな。", "नमस्ते दुनिया क्षत्रिय", "สวัสดีชาวโลก", "العَرَبِيَّة עִבְרִית", "e\u0301cole A\u030angstrom \u0301x",
    "👩\u200d👩\u200d👧 🦙.cpp ✅!!", "nbsp\u00a0here\u2003em\u3000wide\u1680ogham\u180emongol\u200bzero\u0085next", "!!!???...;;; --- '''",
    "$100 #tag @user %5 &amp; <b>x</b>", "   ", "\n", " \n", "x ", "x  \n", "Hello world! Café déjà vu — 123 😊", "_under_score__ 9a a9 9'9",
]
ALPHABET = list(" '\n\r\t/.,!1239aAbBsStTéÉßжЖ語ـ़๑½Ⅷ\u0301\u00a0\u2028\u200d🦙") + ["'ll", "'RE", "  ", "\r\n"]


def random_texts(n):
    rng = random.Random(1)
    return ["".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 24))) for _ in range(n)]


def write_words():
    with open(HERE / "words.jsonl", "w") as out:
        for pre, splitter in FAMILIES.items():
            for text in TEXTS + random_texts(40):
                words = [text[a:b] for _, (a, b) in splitter.pre_tokenize_str(text)]
                assert "".join(words) == text
                print(json.dumps({"pre": pre, "text": text, "words": words}), file=out)


def merges_of(vocab, scores):
    merges = []
    for piece, score in scores.items():
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [p for p in pairs if p[0] in vocab and p[1] in vocab]
        merges += [(*p, score) for p in sorted(pairs, key=lambda p: (vocab[p[0]], vocab[p[1]]))]
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [m[:2] for m in merges]


def llama_spm(path):
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    scores = fields["tokenizer.ggml.scores"].contents()
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = merges_of(vocab, {t: s for t, s in zip(tokens, scores) if t not in ("<unk>", "<s>", "</s>")})
    t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in ("<unk>", "<s>", "</s>")])
    return t


def write_spm(folder):
    t = llama_spm(folder / "ggml-vocab-llama-spm.gguf")
    texts = ["hello</s> world", "<s>G", "<s> G", "<|im_start|>user", "hello</s>world", "a<s></s>b", "</s></s>  x", "</s>\n",
             "</s> é", "This is 🦙.cpp", " Hello world", "", "   ", "\t\n", "Hello world! Café déjà vu — 123 😊"]
    with open(HERE / "spm.jsonl", "w") as out:
        for text in texts + [x for x in TEXTS + random_texts(20) if x]:
            ids = t.encode(text, add_special_tokens=False).ids
            print(json.dumps({"text": text, "special": True, "ids": ids}), file=out)


if __name__ == "__main__":
    write_words()
    write_spm(pathlib.Path(sys.argv[1]))
