"""The strings on which tokenisation is compared: every script, and what breaks tokenizers."""

import itertools
import random
import unicodedata

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|vision_start|>",
    "<|image_pad|>",
    "<|fim_prefix|>",
    "<|audio_pad|>",
    "<tts_text_bos_single>",
]

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg.",
    "Portez ce vieux whisky au juge blond qui fume, à l'île où naît l'été.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.",
    "Luís argüia à Júlia que brações, fé, chá, óxido, pôr, zângão eram palavras.",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Árvíztűrő tükörfúrógép",
    "Flygande bäckasiner söka hwila på mjuka tuvor; smørrebrød og æbler.",
    "Kæmi ný öxi hér ykist þjófum nú bæði víl og ádrepa.",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İIıi",
    "Do bạch kim rất quý nên sẽ dùng để lắp vô xương.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Щастям б'єш жук їх глицю в фон й ґедзь пріч.",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία, ἄνθρωπος ᾧ ΐ",
    "Բարեւ աշխարհ, ինչպե՞ս ես։",
    "დილა მშვიდობისა, როგორ ხარ?",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה, שָׁלוֹם",
    "نص حكيم له سر قاطع وذو شأن عظيم، السَّلَامُ عَلَيْكُمْ",
    "برای مثال می‌خواهم کتاب‌ها را بخوانم",
    "یہ اردو کا ایک جملہ ہے۔",
    "ܫܠܡܐ ܥܠܡܐ ދުނިޔެ",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश किया।",
    "আমি বাংলায় গান গাই, কেমন আছেন?",
    "ਮੈਂ ਪੰਜਾਬੀ ਬੋਲਦਾ ਹਾਂ",
    "ગુજરાતી ભાષા સુંદર છે",
    "ଓଡ଼ିଆ ଭାଷା",
    "தமிழ் மொழி மிகவும் பழமையானது",
    "తెలుగు భాష చాలా మధురమైనది",
    "ಕನ್ನಡ ನಾಡು ನುಡಿ",
    "മലയാളം ഒരു ദ്രാവിഡ ഭാഷയാണ്",
    "සිංහල භාෂාව ශ්‍රී ලංකා",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า น้ำแข็ง",
    "ພາສາລາວ ສະບາຍດີ",
    "မြန်မာဘာသာစကား မင်္ဂလာပါ",
    "ភាសាខ្មែរ សួស្តី",
    "བོད་སྐད་ བཀྲ་ཤིས་བདེ་ལེགས།",
    "ሰላም ለዓለም፣ አማርኛ ቋንቋ።",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᐃᓄᒃᑎᑐᑦ ᚠᚢᚦᚨᚱᚲ ᚛ᚑᚌᚐᚋ᚜",
    "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ Монгол хэл",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。",
    "我能吞下玻璃而不伤身体。人力资源部2024年第3季度报告",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "東京特許許可局、ｶﾀｶﾅ ガギグ か゚ が ﾊﾟ",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "𠮷野家で𩸽を食べる 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 𐌰𐌱𐌲 𓀀𓁐 𒀀𒁀",
    "ⴰⵣⵓⵍ ⵎⴰⴷⵉⵏⵜ ߒߞߏ ꯃꯩꯇꯩ ᱥᱟᱱᱛᱟᱲᱤ ꦧꦱꦗꦮ ᬩᬲᬩᬮᬶ",
    "½ ² ³ ① Ⅷ ٣٤٥ १२३ ๔๕ 一二三 𝟗 ㊿ ½kg 10³ m² H₂O",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ∮E·da = Q, ∑ₙ₌₁^∞ 1/n² = π²/6",
    "…—–‑‐‘quoted’ “double” «guillemets» ¿qué? ¡sí! † ‡ • ‰ € £ ¥ ₹ ₿ ™ © ® § ¶",
]

EMOJI = [
    "😀",
    "👍🏽",
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈",
    "🇩🇪🇯🇵🇺🇸",
    "❤️‍🔥",
    "👩🏿‍🚀",
    "1️⃣#️⃣",
    "☺️☺︎",
    "🫠🫶",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "🧑‍💻",
    "💩💩💩",
    "🤷🏻‍♀️",
]

CODE = [
    'fn main() {\n    println!("{:>8.3}", x as f64 / 3.0);\n}\n',
    "def f(x: int) -> list[int]:\n\treturn [i ** 2 for i in range(x) if i % 2 == 0]\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c[i & 0xFF]; } // done\r\n",
    "SELECT * FROM users WHERE name LIKE '%o''brien%' AND id <> 42;",
    '<div class="a b" data-x=\'{"k": [1, 2.5e-3, null]}\'>&amp;&nbsp;</div>',
    "const f = async (x) => `${await g(x)}` ?? x?.y ?? 0n;",
    "#!/bin/bash\nset -euo pipefail\nfor f in *.txt; do mv \"$f\" \"${f%.txt}.md\"; done\n",
    '{"a": {"b": [true, false, null, -1.5e+10]}, "ü": "\\u00fc"}',
    "\\begin{align} \\frac{\\partial f}{\\partial x} &= 2x \\\\ \\end{align}",
    "| a | b |\n|---|:-:|\n| 1 | **2** |\n\n```python\nprint('hi')\n```\n- [x] done\n",
    "https://example.org/a/b?c=d&e=%20f#g user.name+tag@example.com ../../etc/x.tar.gz",
    "0x1F 0b1010 1_000_000 3.14159 1e-9 192.168.0.1 2024-02-29T23:59:60Z +49 (0)30",
    "if(!a||b&&c){return~d^e<<2>>>1;}/* --><!-- */@#$%^&*()_+{}|:\"<>?",
    "mov eax, [ebp-0x10]\n\tjne .L2\n\t\tnop\n        ret\n",
    "class ΑβγDelta_2(Base): __slots__ = ('x',); naïveCaféVar = camelCaseHTTPServer2XX",
]

CONTRACTIONS = [
    "I'm you're he's she'd we'll they've don't it's",
    "I'M YOU'RE HE'S SHE'D WE'LL THEY'VE DON'T IT'S",
    "'s't're've'm'll'd'S'T'RE'VE'M'LL'D",
    "I’m don’t ’tis 'twas rock'n'roll o'clock y'all'd've",
    "'ſ 'K a'sb 'lll 'dd ''s '' '",
]

# Combining marks of Unicode 14, which the normaliser in `tokenizers` (all versions) predates and
# leaves unordered. Every user of a published tokenizer.json sees the same.
UNKNOWN_MARKS = {*range(0x898, 0x8A0), *range(0x8CA, 0x8D3)}

WHITESPACE = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", "\u00a0", "\u3000", "\u2003",
              "\u200b", "\u2028", "\x0b", "\x0c", "\x85", "\u202f", "\ufeff"]


def strings() -> list[str]:
    """At least 2,000 strings without repetition, the same on every run."""
    rng = random.Random(20240229)
    out = ["", *SENTENCES, *EMOJI, *CODE, *CONTRACTIONS, *SPECIAL, *WHITESPACE]
    out += [sentence.upper() for sentence in SENTENCES] + [s.lower() for s in SENTENCES]
    out += [sentence.replace(" ", "") for sentence in SENTENCES]
    out += [unicodedata.normalize(form, s) for form in ("NFC", "NFD", "NFKD") for s in SENTENCES]
    out += ["e\u0301\u0323 q\u0307\u0323 \u1e9b\u0323 \u212b \u2126 \ufb01 \uac01\u11a8 \u0958 \u2adc",
            "a\u0315\u0300\u05ae\u0062 \u0344 \u0340 \u0f73 \ufb1d \U0001d15e \U0002f800"]
    out += whitespace(rng) + specials(rng) + repeats(rng) + digits(rng)
    out += ["".join(map(chr, range(start, start + 16))) for start in range(0, 0x100, 16)]
    out += [f"a{chr(code)}b {chr(code)} {chr(code) * 3}" for code in [*range(0x20), *range(0x7F, 0xA1)]]
    out += blocks(rng) + mixtures(rng)
    return list(dict.fromkeys(out))


def whitespace(rng: random.Random) -> list[str]:
    out = [a + b for a, b in itertools.product(WHITESPACE, repeat=2)]
    out += [f"x{a}{b}y" for a, b in itertools.product(WHITESPACE[:12], repeat=2)]
    for _ in range(100):
        words = (rng.choice(["a", "Ab", "é", "語", "1", ".", "!?", "'s"]) for _ in range(6))
        out.append("".join(w + "".join(rng.choices(WHITESPACE, k=rng.randint(0, 4))) for w in words))
    return out


def specials(rng: random.Random) -> list[str]:
    out = [f"{before}{token}{after}" for token in SPECIAL
           for before, after in [("a", "b"), (" ", " "), ("\n", "\n\n"), ("<", ">"), ("é", "語")]]
    out += [token[:-1] for token in SPECIAL] + [token.upper() for token in SPECIAL]
    out += [a + b for a, b in itertools.product(SPECIAL[:9], repeat=2)]
    out.append("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    out.append("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>")
    out += ["".join(rng.choices(SPECIAL + ["a", " ", "\n", "<", "|>"], k=8)) for _ in range(80)]
    return out


def repeats(rng: random.Random) -> list[str]:
    units = ["a", "aa", "ab", "ha", "=", "-", "#", ".", "!", " ", "\n", "0", "é", "語", "哈", "😀", "ก", "на"]
    out = [unit * n for unit in units for n in (3, 7, 16, 33, 100)]
    out += [unit * rng.randint(200, 400) for unit in units]
    out += [(unit + " ") * 40 for unit in units]
    return out


def digits(rng: random.Random) -> list[str]:
    numbers = [str(rng.randrange(10**n)) for n in range(1, 40)]
    return numbers + [f"{n}px" for n in numbers[:20]] + [f"${int(n):,}.99" for n in numbers[:20]]


def blocks(rng: random.Random) -> list[str]:
    """Random assigned characters of each stretch of 256 code points."""
    out = []
    for start in range(0x100, 0x20000, 0x100):
        chars = [c for c in map(chr, range(start, start + 0x100))
                 if unicodedata.category(c) not in ("Cn", "Cs") and ord(c) not in UNKNOWN_MARKS]
        if chars:
            out.append("".join(rng.choices(chars, k=12)))
            out.append(" ".join(rng.choices(chars, k=5)))
    return out


def mixtures(rng: random.Random) -> list[str]:
    pool = SENTENCES + EMOJI + CODE + CONTRACTIONS
    out = []
    for _ in range(600):
        parts = []
        for _ in range(rng.randint(2, 5)):
            text = rng.choice(pool)
            start = rng.randrange(len(text))
            parts.append(text[start : start + rng.randint(1, 30)])
        out.append(rng.choice(["", " ", "\n", "\t", "  "]).join(parts))
    return out


if __name__ == "__main__":
    print(len(strings()), "strings")
