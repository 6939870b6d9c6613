r"""Answers as people and models write them, brought to one notation: LaTeX in ASCII.

`$\boxed{\text{Yes}}$.` becomes `Yes`, `1 1/4` the sum that it stands for, `pi/2` a `\pi/2`,
`2*x**2` LaTeX, and a full-width digit a digit. Nothing here computes anything or builds a symbolic
object. Texts are short (`bounds.MAX_CHARACTERS`).

What this module does not do: read mathematics (math-verify does), compare (`comparing`, `wording`).
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

MAX_LAYERS = 8
"""Wrappers that are taken off one after the other."""

_TEXT_COMMANDS = (
    "text|textbf|textit|textrm|textsf|texttt|textnormal|mbox|hbox|mathrm|mathbf|mathit|mathsf"
)
_WRAPPER = re.compile(
    rf"\\(?:{_TEXT_COMMANDS}|boxed|fbox|bm|boldsymbol|displaystyle|operatorname)\s*\{{"
)
_PAIRS = (
    ("**", "**"),
    ("__", "__"),
    ("`", "`"),
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
)
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₙᵢⱼₖₘ", "0123456789+-=()nijkm", strict=True))
_SCRIPTS = re.compile(f"([{''.join(_SUPERSCRIPTS)}]+)|([{''.join(_SUBSCRIPTS)}]+)")
_SIGNS = {
    "\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-",
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": "/",
    "∕": "/", "⁄": "/", "∶": ":", "≤": r"\leq ", "⩽": r"\leq ", "≥": r"\geq ", "⩾": r"\geq ",
    "≠": r"\neq ", "≈": r"\approx ", "≡": r"\equiv ", "≅": r"\cong ", "→": r"\to ",
    "⇒": r"\implies ", "⇔": r"\iff ", "∈": r"\in ", "∉": r"\notin ", "⊂": r"\subset ",
    "⊆": r"\subseteq ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ",
    "∀": r"\forall ", "∃": r"\exists ", "∞": r"\infty ", "±": r"\pm ", "∓": r"\mp ",
    "√": r"\sqrt ", "∛": r"\sqrt[3]", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ",
    "°": r"^\circ ", "º": r"^\circ ", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"',
    "…": r"\ldots ", "⋯": r"\cdots ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ",
    "⌉": r"\rceil ", "⟨": r"\langle ", "⟩": r"\rangle ", "∣": "|", "‖": r"\|",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}",
    "ℂ": r"\mathbb{C}", "ℵ": r"\aleph ",
}  # fmt: skip
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta",
    "η": "eta", "θ": "theta", "λ": "lambda", "μ": "mu", "µ": "mu", "ν": "nu", "ξ": "xi",
    "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ϕ": "phi", "χ": "chi",
    "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda",
    "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_TRANSLATION = str.maketrans(_SIGNS | {letter: f"\\{name} " for letter, name in _GREEK.items()})
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_VARIANTS = re.compile("[\uff01-\uff5e\U0001d400-\U0001d7ff\ufe62-\ufe66]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufe0e\ufe0f]")
_BLANKS = re.compile(r"[\s\u00a0\u2000-\u200a\u202f\u205f\u3000]+")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def undress(text: str) -> str:
    r"""A text without what never changes its value: `$\text{Yes}$.` becomes `Yes`."""
    for _ in range(MAX_LAYERS):
        before = text
        text = _without_full_stop(text)
        for opening, closing in _PAIRS:
            inner = text[len(opening) : len(text) - len(closing)]
            wrapped = text.startswith(opening) and text.endswith(closing)
            if wrapped and len(text) > len(opening + closing) and _bare(inner, opening, closing):
                text = inner
                break
        match = _WRAPPER.match(text)
        if match and closing_brace(text, match.end() - 1) == len(text) - 1:
            text = text[match.end() : -1]
        if text == before:
            return text
    return text


def _bare(inner: str, opening: str, closing: str) -> bool:
    r"""Whether neither delimiter stands inside; `\$` is no delimiter."""
    bare = inner.replace(r"\$", "") if opening.startswith("$") else inner
    return opening not in bare and closing not in bare


def closing_brace(text: str, start: int) -> int:
    """Where the brace that opens at `start` is closed, -1 where it is not."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return -1


def _without_full_stop(text: str) -> str:
    text = text.strip()
    if text.endswith((".", ",", ";")) and not text.endswith(("..", r"\,", r"\;")):
        text = text[:-1].rstrip()
    return text


def ascii_of(text: str) -> str:
    """A text with its characters brought to ASCII and LaTeX, blanks made single.

    Full-width forms, mathematical letters, superscripts and vulgar fractions stand for what they
    show; characters without a width are dropped. Digits of other scripts stay, and are no numbers.
    """
    if not text.isascii():
        text = _INVISIBLE.sub("", text)
        text = _VULGAR.sub(_vulgar_fraction, text)
        text = _SCRIPTS.sub(_script, text)
        text = _VARIANTS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
        text = text.translate(_TRANSLATION)
    return _BLANKS.sub(" ", text).strip()


def _vulgar_fraction(match: re.Match[str]) -> str:
    numerator, _, denominator = unicodedata.normalize("NFKC", match[0]).partition("\u2044")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _script(match: re.Match[str]) -> str:
    if match[1]:
        return "^{" + "".join(_SUPERSCRIPTS[letter] for letter in match[1]) + "}"
    return "_{" + "".join(_SUBSCRIPTS[letter] for letter in match[2]) + "}"


_SIZING = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|limits)(?![A-Za-z])")
_SPACING = re.compile(r"(?<!\\)\\[,!;:> ]|\\(?:quad|qquad|thinspace)(?![A-Za-z])|~")
_LETTER = re.compile(r"\\(?:mathrm|operatorname|text|textit|mathit)\s*\{\s*([eid])\s*\}")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,?\\[!,]\s*)(?=\d{3}(?!\d))")
_GROUPED = re.compile(r"([+-]?)(\d{1,3})((?:[ ]\d{3})+)(\.\d+)?")
_SPACES = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")


def tidy(text: str) -> str:
    r"""An answer in ASCII LaTeX without sizes and thin spaces: the form that texts are compared in.

    Two answers that differ in dress and layout alone become equal; `1 2` and `12` stay different.
    """
    text = undress(ascii_of(text))
    text = text.replace(r"\ge ", r"\geq ").replace(r"\le ", r"\leq ").replace(r"\ne ", r"\neq ")
    text = _SIZING.sub("", text)
    text = _THOUSANDS.sub("", text)
    text = _LETTER.sub(r" \1 ", _SPACING.sub(" ", text))
    text = _FRACTIONS.sub(r"\\frac", text)
    text = _BLANKS.sub(" ", text).strip()
    if _GROUPED.fullmatch(text) is not None:
        text = text.replace(" ", "")
    return text


def letters_of(text: str) -> str:
    """A tidy text without the blanks that no two letters or digits need."""
    return _SPACES.sub("", text)


_FUNCTIONS = (
    "arcsin|arccos|arctan|arccot|sinh|cosh|tanh|coth|sin|cos|tan|cot|sec|csc|ln|log|max|min|gcd"
)
_PLAIN_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])")
_PLAIN_GREEK = re.compile(
    r"(?<![\\A-Za-z])(pi|theta|alpha|beta|gamma|delta|lambda|mu|sigma|omega|phi)(?![A-Za-z])"
)
_PLAIN_INFINITY = re.compile(r"(?<![\\A-Za-z])(?:infinity|infty|inf|oo)(?![A-Za-z])", re.IGNORECASE)
_CALL = re.compile(r"(?<![\\A-Za-z])(sqrt|cbrt|exp|abs)\s*\(")
_ROOT_SIGN = re.compile(r"\\sqrt\s*(\(|\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))")
_POWER = re.compile(r"(\^|\*\*)\s*([+-]?\s*\d+(?:\.\d+)?|[+-]\s*[A-Za-z]|\()")
_MIXED = re.compile(
    r"(?<![\d./^_{}A-Za-z)])(\d+)\s*(?: (\d+)\s*/\s*(\d+)|\\frac\s*\{(\d+)\}\s*\{(\d+)\}"
    r"|\\frac\s*(\d)(\d))(?![\d/.])"
)
_SCIENTIFIC = re.compile(r"(?<![A-Za-z\d.])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,4})(?![A-Za-z\d.])")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}")
_UNION = re.compile(r"(?<=[\])}])\s*(?:U|u|or|\\text\s*\{\s*or\s*\})\s*(?=[\[({\\])")
_CONJUNCTION = re.compile(
    r"\s*,?\s*(?:\\(?:text|mbox|quad|textrm)\s*\{\s*(?:and|or)\s*,?\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*"
)
_IMAGINARY = re.compile(r"(?<![\\A-Za-z])i(?![A-Za-z])")
_ARRAY = re.compile(
    r"[\[(]\s*\\begin\{array\}\s*(?:\{[^{}]*\})?(.*?)\\end\{array\}\s*[\])]", re.DOTALL
)
_MATRIX = re.compile(r"\[\s*(\[[^\[\]]*\]\s*(?:,\s*\[[^\[\]]*\]\s*)*)\]")


def latex(text: str) -> str:
    """A tidy text as LaTeX that a LaTeX parser can read."""
    text = text.replace(r"\varnothing", r"\emptyset")
    if text in (r"\{\}", r"\{ \}", "{}"):
        return r"\emptyset"
    if (match := _MATRIX.fullmatch(text)) is not None:
        rows = re.findall(r"\[([^\[\]]*)\]", match[1])
        body = r" \\ ".join(row.replace(",", " & ") for row in rows)
        text = rf"\begin{{pmatrix}} {body} \end{{pmatrix}}"
    if text.startswith("{") and text.endswith("}") and closing_brace(text, 0) == len(text) - 1:
        text = rf"\{{{text[1:-1]}\}}"
    text = _ARRAY.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", text)
    text = re.sub(r"\\\\\s*(?=\\end\{)", "", text)
    text = _REPEATING.sub(_repeating, text)
    text = _SCIENTIFIC.sub(r"\1 \\cdot 10^{\2}", text)
    text = _calls(text)
    text = _powers(text)
    text = _MIXED.sub(_mixed, text)
    text = _UNION.sub(r" \\cup ", text)
    text = _CONJUNCTION.sub(", ", text) if _CONJUNCTION.search(text) else text
    text = _PLAIN_FUNCTION.sub(r"\\\1", text)
    text = _PLAIN_GREEK.sub(r"\\\1 ", text)
    text = _PLAIN_INFINITY.sub(r"\\infty ", text)
    text = _IMAGINARY.sub(" i ", text)
    text = re.sub(r"(?<!\\)\*", r" \\cdot ", text)
    for sign, command in ((">=", r"\geq "), ("<=", r"\leq "), ("!=", r"\neq ")):
        text = text.replace(sign, command)
    text = re.sub(r"\\gamma\s*(?=_)", r"\\mathit{gamma}", text)  # without an index it is Euler's
    text = re.sub(r"(?<=[{(\[]) +| +(?=[})\]])", "", text)
    return _BLANKS.sub(" ", text).strip()


def _mixed(match: re.Match[str]) -> str:
    """One and a quarter is a sum, where the fraction is proper."""
    numbers = [group for group in match.groups() if group is not None]
    whole, numerator, denominator = numbers
    if int(numerator) >= int(denominator):
        return match[0]
    return rf"({whole}+\frac{{{numerator}}}{{{denominator}}})"


def _repeating(match: re.Match[str]) -> str:
    whole, start, period = match[1] or "0", match[2], match[3]
    nines = (10 ** len(period) - 1) * 10 ** len(start)
    value = (
        int(whole) + Fraction(int(start or "0"), 10 ** len(start)) + Fraction(int(period), nines)
    )
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _calls(text: str) -> str:
    """`sqrt(x)`, `exp(x)` and the root sign as LaTeX, innermost last."""
    for _ in range(len(text)):
        match = _CALL.search(text)
        end = closing_parenthesis(text, match.end() - 1) if match else -1
        if match is None or end < 0:
            break
        inner = text[match.end() : end]
        made = {
            "sqrt": rf"\sqrt{{{inner}}}",
            "cbrt": rf"\sqrt[3]{{{inner}}}",
            "exp": rf"e^{{{inner}}}",
            "abs": rf"|{inner}|",
        }[match[1]]
        text = f"{text[: match.start()]}{made}{text[end + 1 :]}"
    for match in reversed(list(_ROOT_SIGN.finditer(text))):
        begin = match.start(1)
        end = match.end(1) - 1
        if match[1] == "(":
            end = closing_parenthesis(text, begin)
            if end < 0:
                continue
        text = rf"{text[: match.start()]}\sqrt{{{text[begin : end + 1]}}}{text[end + 1 :]}"
    return text


def _powers(text: str) -> str:
    """`x**2`, `x^10` and `x^(1/2)` with braces around the exponent."""
    place = 0
    while (match := _POWER.search(text, place)) is not None:
        begin, end = match.start(2), match.end(2) - 1
        if match[2] == "(":
            end = closing_parenthesis(text, begin)
            if end < 0:
                place = match.end()
                continue
            begin, inner = begin, text[begin + 1 : end]
        else:
            inner = text[begin : end + 1]
        text = f"{text[: match.start()]}^{{{inner}}}{text[end + 1 :]}"
        place = match.start() + 2
    return text


def closing_parenthesis(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` is closed, -1 where it is not."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return -1
