"""From the mathematics of docstrings, written in plain characters, to that of pages, written in LaTeX.

A docstring is the only place where an update rule is written: indented lines are its formulas, and symbols stand in its
sentences as well. ``theta_{t+1} = theta_t - eta grad_theta U(theta_t; A_t x)`` becomes
``\\theta_{t+1} = \\theta_t - \\eta \\nabla_{\\theta} U(\\theta_t; A_t x)``. Words that are no symbols stay words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

GREEK = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "eta",
    "theta",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "pi",
    "rho",
    "sigma",
    "tau",
    "phi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Xi",
    "Pi",
    "Sigma",
    "Phi",
    "Psi",
    "Omega",
]
BIG = {"sum": r"\sum", "prod": r"\prod"}
FUNCTIONS = {name: rf"\{name}" for name in ("log", "exp", "max", "min", "cos", "sin", "det", "sup")}
FUNCTIONS |= {
    name: rf"\mathrm{{{name}}}"
    for name in ("KL", "CE", "Cov", "Var", "tr", "diag", "mean", "median", "softmax", "sg", "supp", "entropy")
}
FUNCTIONS |= {"argmin": r"\mathrm{arg\,min}", "argmax": r"\mathrm{arg\,max}", "stopgrad": r"\mathrm{sg}", "W2": "W_2"}
SYMBOLS = {name: rf"\{name}" for name in GREEK} | {"grad": r"\nabla", "in": r"\in", "const": r"\mathrm{const}"}
SYMBOLS |= dict.fromkeys(("epsilon", "eps"), r"\varepsilon")
DIFFERENTIALS = {"dL", "dq", "ds", "dx", "dw"}
OPERATORS = {
    "...": r"\dots ", "..": r"\dots ", "<-": r"\leftarrow ", "->": r"\to ", "<=": r"\le ", ">=": r"\ge ",
    "~=": r"\approx ", "!=": r"\ne ", "~": r"\sim ", "*": r"\cdot ", "#": r"\#", "/": "/",
}  # fmt: skip
RELATIONS = ("~=", "<-", "=", ">=", "~")
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">", "||": "||", "|": "|"}
FENCES = {"(": ("(", ")"), "[": ("[", "]"), "{": (r"\{", r"\}"), "<": (r"\langle ", r"\rangle ")}
NORMS = {"||": r"\|", "|": "|"}
TALL = (r"\frac", r"\sum", r"\sqrt")
"""What brackets grow with."""
KNOWN = "|".join([*GREEK, *BIG, *FUNCTIONS, "grad"])
TOKEN = re.compile(
    r"``(?P<code>[^`]+)``|(?P<number>\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)"
    r"|(?P<hyphened>[A-Za-z]+(?:-[A-Za-z]+)+|[A-Za-z]{2,}'[a-z]+)"
    rf"|(?P<name>(?!(?:{KNOWN})_)[a-z]{{2,}}(?:_[a-z]{{2,}})+)"
    r"|(?P<word>[A-Za-z]+)|(?P<sign>\.\.\.|\.\.|<-(?= )|->|<=|>=|~=|!=|\|\||.)"
)
ARTICLES = {"a", "A", "I"}
"""Letters that are symbols only where what follows says so."""


class Token(NamedTuple):
    kind: str
    text: str
    begin: int
    end: int


class Node(NamedTuple):
    """A part of a formula; what ``strips`` is in round brackets, which a fraction does without."""

    latex: str
    kind: str
    strips: str = ""


def tokens_of(text: str) -> list[Token]:
    found = []
    for match in TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if match[0].isspace():
            continue
        found.append(Token(kind, match[kind], match.start(), match.end()))
    return found


@dataclass
class _Parser:
    """Recursive descent over the tokens of one formula."""

    text: str
    display: bool

    def __post_init__(self) -> None:
        self.tokens, self.at = tokens_of(self.text), 0

    def latex(self) -> str:
        return self._sequence(None)

    def _peek(self, ahead: int = 0) -> Token | None:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def _adjacent(self) -> bool:
        """Whether nothing stands between the last token and the next one."""
        following = self._peek()
        return following is not None and self.at > 0 and self.tokens[self.at - 1].end == following.begin

    def _spaced(self) -> bool:
        """Whether the token that was just taken has a space, or nothing, after it."""
        return not self._adjacent()

    def _next(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def _sequence(self, closing: str | None, function: str = "") -> str:
        nodes: list[Node] = []
        while (token := self._peek()) is not None:
            if closing is not None and token.kind == "sign" and token.text == closing:
                break
            nodes.append(self._node(nodes, function))
            if nodes[-1].kind == "divided":
                nodes[-1] = self._fraction(nodes)
        return joined([node for node in nodes if node.latex])

    def _fraction(self, nodes: list[Node]) -> Node:
        """What stands before and after a slash as a fraction, where both are one thing."""
        slash = Node("/", "operator")
        before = nodes[-2] if len(nodes) > 1 else None
        following = self._peek()
        if before is None or before.kind != "atom" or following is None or self._is_big(following):
            return slash
        mark = self.at
        after = self._node([], "")
        if after.kind != "atom" or not self.display:
            self.at = mark
            return slash
        nodes[-2] = Node("", "nothing")
        upper, lower = (each.strips or each.latex for each in (before, after))
        return Node(rf"\frac{{{upper}}}{{{lower}}}", "atom")

    def _is_big(self, token: Token) -> bool:
        return token.kind == "word" and (token.text in BIG or token.text in ("mean", "tr", "log"))

    def _node(self, before: list[Node], function: str) -> Node:
        token = self._next()
        if token.kind in ("code", "name"):
            return self._with_scripts(rf"\texttt{{{token.text}}}")
        if token.kind == "number":
            return self._with_scripts(number(token.text))
        if token.kind == "hyphened":
            return self._words(token)
        if token.kind == "word":
            return self._symbol(token) if is_symbol(token.text) and not self._is_article(token) else self._words(token)
        if token.text == "||" and function == "KL":
            return Node(r"\,\|\, ", "operator")
        if token.text == "(" and self._kronecker():
            self.at += 2
            return Node(r"\otimes ", "operator")
        if token.text in CLOSING and self._opens(token):
            return self._group(token.text)
        if token.text == "." and self._gap() and self.text[token.begin - 1 : token.begin] == " ":
            return Node(r"\cdot ", "operator")
        if token.text == "|":
            return Node(r"\mid ", "operator")
        if token.text == "/":
            return Node("/", "divided")
        if token.text == "," and self._gap() > 1:
            return Node(r",\quad ", "operator")
        return Node(OPERATORS.get(token.text, token.text), "operator")

    def _is_article(self, token: Token) -> bool:
        """``a`` between words."""
        beside = self._peek(), self.tokens[self.at - 2] if self.at > 1 else None
        words = [each is not None and (each.kind == "hyphened" or is_word(each)) for each in beside]
        return token.text in ARTICLES and all(words)

    def _gap(self) -> int:
        following = self._peek()
        return 0 if following is None else following.begin - self.tokens[self.at - 1].end

    def _kronecker(self) -> bool:
        """``A (x) G``, with spaces around."""
        x, end = self._peek(), self._peek(1)
        opening = self.tokens[self.at - 1]
        if x is None or end is None or (x.text, end.text) != ("x", ")") or end.end >= len(self.text):
            return False
        return opening.begin > 0 and self.text[opening.begin - 1] == " " and self.text[end.end] == " "

    def _opens(self, token: Token) -> bool:
        """Whether the sign is the first of a pair."""
        if token.text in "([{":
            return True
        if token.text == "|" and self._spaced():
            return False
        depth = 0
        for other in self.tokens[self.at :]:
            if depth == 0 and other.kind == "sign" and other.text == CLOSING[token.text]:
                return True
            depth += (other.text in ("(", "[", "{")) - (other.text in (")", "]", "}"))
            if depth < 0:
                return False
        return False

    def _group(self, opening: str, function: str = "") -> Node:
        inner = self._sequence(CLOSING[opening], function)
        if self._peek() is not None:
            self._next()
        left, right = fences(opening, self.display and any(each in inner for each in TALL))
        only_fraction = opening == "(" and not function and _is_one_fraction(inner)
        latex = inner if only_fraction else f"{left}{inner}{right}"
        found = self._with_scripts(latex)
        scripted = found.latex != latex
        if only_fraction and scripted:
            found = Node(found.latex.replace(inner, f"{left}{inner}{right}", 1), "atom")
        return Node(found.latex, "atom", inner if opening == "(" and not scripted else "")

    def _words(self, first: Token) -> Node:
        words, end = [first.text], first.end
        while (token := self._peek()) is not None and token.kind in ("word", "hyphened"):
            self.at += 1
            stops = token.kind == "word" and is_symbol(token.text) and not self._is_article(token)
            if stops or token.begin - end > 1:
                self.at -= 1
                break
            words.append(token.text)
            end = token.end
        return Node(rf"\text{{ {' '.join(words)} }}", "words")

    def _symbol(self, token: Token) -> Node:
        name = token.text
        if name in ("sqrt",) and self._is_sign("("):
            self._next()
            inner = self._sequence(")")
            self._next()
            return Node(rf"\sqrt{{{inner}}}", "atom")
        if name in BIG or name == "in":
            return Node(self._with_scripts(symbol(name)).latex, "operator")
        node = self._with_scripts(symbol(name), name)
        while self._adjacent() and (self._is_sign("(") or self._is_sign("[")):
            opening = self._next().text
            group = self._group(opening, name)
            node = Node(f"{node.latex} {group.latex}", "atom")
        plain = name in FUNCTIONS or name == "grad"
        return node if node.kind != "atom" or not plain or node.latex.endswith(")") else node._replace(kind="function")

    def _is_sign(self, text: str) -> bool:
        token = self._peek()
        return token is not None and token.kind == "sign" and token.text == text

    def _with_scripts(self, base: str, name: str = "") -> Node:
        """Tildes, primes, stars, signs, digits, and what ``_`` and ``^`` lead in."""
        lower, upper = "", ""
        while self._adjacent():
            token = self._peek()
            assert token is not None
            after = self._peek(1)
            free = after is None or after.begin > token.end or after.text in "_,.;:)]}|^'"
            if token.kind == "number" and name and not lower:
                self._next()
                lower = token.text
            elif token.kind != "sign":
                break
            elif token.text == "~" and name:
                self._next()
                base = rf"\tilde {base}" if base.startswith("\\") else rf"\tilde{{{base}}}"
            elif token.text == "'" and name and free:
                self._next()
                upper += r"\prime "
            elif token.text in "*+-" and name and free and not upper:
                self._next()
                upper = token.text
            elif token.text == "_":
                self._next()
                lower += self._script(upper=False)
            elif token.text == "^":
                self._next()
                upper += self._script()
            else:
                break
        scripts = (f"_{{{lower}}}" if lower else "") + (f"^{{{upper}}}" if upper else "")
        return Node(base + scripts, "atom")

    def _script(self, upper: bool = True) -> str:
        token = self._next()
        if token.text == "-" and self._adjacent():
            return "-" + self._script(upper)
        if token.text in ("{", "("):
            display, self.display = self.display, False
            inner = self._sequence(CLOSING[token.text])
            self.display = display
            self._next()
            return inner
        if token.kind == "number":
            following, after = self._peek(), self._peek(1)
            if (
                self._is_sign("/")
                and self._adjacent()
                and following is not None
                and after is not None
                and after.kind == "number"
            ):
                self._next()
                return f"{token.text}/{self._next().text}"
            return token.text
        if token.text == "T" and upper:
            return r"\top "
        if token.kind in ("code", "name"):
            return rf"\texttt{{{token.text}}}"
        inner = symbol(token.text) if is_symbol(token.text) else index(token.text)
        if self._adjacent() and self._is_sign("_"):
            self._next()
            return f"{inner}_{{{self._script(upper=False)}}}"
        if token.text in ("sg", "supp") and self._adjacent() and self._is_sign("("):
            self._next()
            argument = self._sequence(")")
            self._next()
            return f"{inner}({argument})"
        return inner


def _is_one_fraction(latex: str) -> bool:
    if not latex.startswith(r"\frac{"):
        return False
    depth, groups = 0, 0
    for place, character in enumerate(latex[len(r"\frac") :], len(r"\frac")):
        depth += (character == "{") - (character == "}")
        groups += depth == 0 and character == "}"
        if groups == 2:
            return place == len(latex) - 1
    return False


def joined(nodes: list[Node]) -> str:
    """Thin spaces stand around the names of functions, where no bracket does."""
    parts: list[str] = []
    named = tuple(FUNCTIONS.values())
    for number, node in enumerate(nodes):
        before = nodes[number - 1].kind if number else ""
        after_name = before == "function" and nodes[number - 1].latex.startswith(named)
        if (before == "atom" and node.latex.startswith(named)) or (after_name and node.kind == "atom"):
            parts.append(r"\,")
        parts.append(node.latex)
    return " ".join(parts)


def fences(opening: str, tall: bool) -> tuple[str, str]:
    """What stands before and after; bars are always told from others by their side."""
    left, right = FENCES.get(opening) or (NORMS[opening], NORMS[opening])
    return (rf"\left{left} ", rf" \right{right} ") if tall or opening in NORMS else (f"{left} ", f" {right}")


def is_symbol(word: str) -> bool:
    """Whether a word is a symbol wherever mathematics stands."""
    known = word in SYMBOLS or word in BIG or word in FUNCTIONS or word == "sqrt"
    return known or len(word) == 1 or (word[0] == "d" and word[1:] in GREEK) or word in DIFFERENTIALS


def is_word(token: Token) -> bool:
    return token.kind == "word" and not is_symbol(token.text)


def number(text: str) -> str:
    """With powers of ten as such: 1e-6."""
    power = re.fullmatch(r"(\d+)e(-?\d+)", text)
    if power is None:
        return text.replace(",", "{,}")
    return f"10^{{{power[2]}}}" if power[1] == "1" else rf"{power[1]} \cdot 10^{{{power[2]}}}"


def symbol(word: str) -> str:
    if word[0] == "d" and word[1:] in GREEK:
        return rf"d\{word[1:]}"
    return SYMBOLS.get(word) or BIG.get(word) or FUNCTIONS.get(word) or word


def index(word: str) -> str:
    """Two letters are two indices; more are a word."""
    return word if len(word) <= 2 else rf"\mathrm{{{word}}}"


def formula(text: str, display: bool = True) -> str:
    """One formula in LaTeX."""
    return _Parser(text.strip(), display).latex()


# --- lines of formulas ---------------------------------------------------------------------------------


def block(lines: list[str]) -> str:
    """Indented lines as Markdown: formulas under one another, aligned at their relations, or a list if they are words.

    A line that stands further to the right goes on with the one before it.
    """
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    lines = [line[margin:].rstrip() for line in lines]
    if all(_is_prose(line) for line in lines):
        items = [re.sub(r" {2,}", " ", line) for line in lines]
        return "\n".join(f"- {prose(item)}" for item in items) + "\n"
    rows = []
    for line in lines:
        if line.startswith(" "):
            rows.append(("& " if line.lstrip().startswith(RELATIONS) else r"& \quad ") + formula(line))
            continue
        left, relation, right = _at_relation(line)
        if relation:
            rows.append(f"{_spread(left)} & {OPERATORS.get(relation, relation)} {_spread(right)}")
        else:
            rows.append(_spread(line) if len(lines) == 1 else f"& {_spread(line)}")
    body = rows[0].replace("& ", "") if len(rows) == 1 else _aligned(rows)
    return f"```math\n{body}\n```\n"


def _aligned(rows: list[str]) -> str:
    return r"\begin{align*} " + r" \\ ".join(rows) + r" \end{align*}"


def _is_prose(line: str) -> bool:
    found = tokens_of(line)
    words = sum(each.kind in ("hyphened", "code") or (each.kind == "word" and len(each.text) > 1) for each in found)
    return not _at_relation(line)[1] and words > 0.6 * len(found)


def _spread(text: str) -> str:
    """The parts that wide gaps separate."""
    parts, depth, begin = [], 0, 0
    text = text.strip()
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and text[place : place + 2] == "  " and text[place - 1] != " ":
            parts.append(text[begin:place])
            begin = place
    return r" \quad ".join(formula(part) for part in [*parts, text[begin:]])


def _at_relation(line: str) -> tuple[str, str, str]:
    """What stands before and after the first relation outside of all brackets."""
    depth = 0
    for token in tokens_of(line):
        if token.kind != "sign":
            continue
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        before = line[: token.begin]
        if depth == 0 and token.text in RELATIONS and before.endswith(" "):
            return before, token.text, line[token.end :]
    return line, "", ""


# --- sentences -----------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """A paragraph as Markdown, with the symbols and formulas in it as mathematics."""
    text = re.sub(r"(?<=``) x (?=``)", " × ", text)
    found = tokens_of(text)
    parts, place, number = [], 0, 0
    while number < len(found):
        end = _run(text, found, number)
        if end is None:
            number += 1
            continue
        begin, stop = found[number].begin, found[end - 1].end
        parts += [_plain(text[place:begin]), f"$`{formula(text[begin:stop], display=False).strip()}`$"]
        place, number = stop, end
    return "".join([*parts, _plain(text[place:])])


def _plain(text: str) -> str:
    """Without the mark-up of docstrings, and with nothing that Markdown would read as its own."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)
    pieces = re.split(r"(``[^`]+``)", text)
    kept = [f"`{each[2:-2]}`" if each.startswith("``") else each for each in pieces]
    return "".join(
        each if each.startswith("`") else re.sub(r"(?<=\w)_|(?<!\*)\*(?=\s|$)", r"\\\g<0>", each) for each in kept
    )


def _run(text: str, found: list[Token], first: int) -> int | None:
    """Where the formula ends that begins with this token, if one does."""
    if not _begins(text, found, first):
        return None
    depth, last, number, strong = 0, first, first, False
    while number < len(found):
        token = found[number]
        sign = token.kind == "sign"
        gap = token.begin - found[number - 1].end if number > first else 0
        if sign and token.text in "([{":
            inner = _closing(found, number)
            if inner is None or (gap and not _mathematical(text, found, number + 1, inner - 1)):
                break
            strong = strong or any(each.kind == "word" for each in found[number:inner])
            number = last = inner
            continue
        if sign and token.text in ")]}":
            break
        if sign and token.text == "<" and number + 1 < len(found) and found[number + 1].begin == token.end:
            closing = [place for place in range(number, len(found)) if found[place].text == ">"]
            if closing:
                number = last = closing[0] + 1
                strong = True
                continue
        if sign and token.text in (".", ",", ";", ":", "?", "!", "`", "&") and depth == 0:
            break
        if token.kind in ("hyphened", "code", "name"):
            break
        following = found[number + 1] if number + 1 < len(found) else None
        if token.text == "'" and following is not None and (following.kind, following.begin) == ("word", token.end):
            break  # a genitive
        if token.kind == "word" and not _is_inline_symbol(text, found, number):
            break
        strong = strong or (token.kind == "word")
        number += 1
        if (
            not sign
            or token.text in ("|", "||", "'", "*", "...", ">")
            or (token.text in "+-~" and gap == 0)
            or (token.text in ("=", "<-", "~=") and number < len(found) and found[number].kind == "code")
        ):
            last = number
    words = text[found[first].begin : found[last - 1].end]
    balanced = words.count("|") % 2 == 0 or " | " in words
    return last if strong and balanced else None


def _mathematical(text: str, found: list[Token], begin: int, end: int) -> bool:
    """Whether what stands in brackets is a formula, and no remark."""
    return all(
        each.kind in ("number", "sign") or (each.kind == "word" and _is_inline_symbol(text, found, number))
        for number, each in enumerate(found[begin:end], begin)
    )


def _begins(text: str, found: list[Token], number: int) -> bool:
    token = found[number]
    if token.text in ("(", "["):
        inner = _closing(found, number)
        parts = [] if inner is None else found[number + 1 : inner - 1]
        working = any(each.kind == "sign" and each.text in "/+-[" for each in parts) or token.text == "["
        symbols = [each for each in parts if each.kind == "word"]
        return bool(inner and symbols and working) and _mathematical(text, found, number + 1, (inner or 0) - 1)
    if token.kind == "word":
        joined = number > 0 and found[number - 1].end == token.begin and text[token.begin - 1] in "-_`:'~"
        return not joined and _is_inline_symbol(text, found, number) and token.text != "in"
    following = found[number + 1] if number + 1 < len(found) else None
    if following is None or following.kind != "word" or not _is_inline_symbol(text, found, number + 1):
        return (
            token.kind == "number"
            and following is not None
            and following.text in "/-"
            and _before_symbol(text, found, number)
        )
    if token.kind == "number":
        return following.begin - token.end <= 1 and following.text not in ARTICLES and following.text != "in"
    return token.text in ("|", "||", "-", "<") and (following.begin == token.end or token.text in ("||", "-"))


def _before_symbol(text: str, found: list[Token], number: int) -> bool:
    after = number + 2
    return after < len(found) and found[after].kind == "word" and _is_inline_symbol(text, found, after)


def _closing(found: list[Token], number: int) -> int | None:
    """The number after that of the bracket which closes this one."""
    depth = 0
    for place, token in enumerate(found[number:], number):
        if token.kind == "sign":
            depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if depth == 0:
            return place + 1
    return None


def _is_inline_symbol(text: str, found: list[Token], number: int) -> bool:
    """Whether a word of a sentence is a symbol there."""
    token = found[number]
    following = found[number + 1] if number + 1 < len(found) else None
    scripted = following is not None and following.begin == token.end and following.text in ("_", "^", "(", "[", "~")
    if number > 0 and found[number - 1].text in ("_", "^") and found[number - 1].end == token.begin:
        return True
    if token.text in ARTICLES:
        operator = following is not None and following.text in (
            "=",
            "+",
            "*",
            "^",
            "_",
            "epochs",
            "is",
            "one",
            ",",
            ")",
            "<",
        )
        if number > 0 and found[number - 1].text == "=":
            return True
        close = following is not None and following.kind == "word" and len(following.text) == 1
        return operator or scripted or (close and token.text == "A")
    if token.text in ("in", "mean", "median", "max", "min", "sum", "entropy", "diag", "tr", "log"):
        if token.text == "min" and following is not None and following.text == "|":
            return True
        symbolic = following is not None and following.kind == "word" and token.text in ("log", "tr", "sum")
        return (scripted and token.text != "in") or (symbolic and _is_inline_symbol(text, found, number + 1))
    if token.text in FUNCTIONS and token.text not in ("KL", "sg", "W2"):
        return scripted
    return is_symbol(token.text)


# --- whole docstrings ----------------------------------------------------------------------------------


def markdown(docstring: str) -> str:
    """A docstring as Markdown: its paragraphs with their symbols, its indented lines as formulas."""
    parts: list[str] = []
    sentence: list[str] = []
    formulas: list[str] = []

    def close() -> None:
        nonlocal sentence, formulas
        if sentence:
            parts.append(prose(" ".join(sentence)) + "\n")
        if formulas:
            parts.append(block(formulas))
        sentence, formulas = [], []

    for line in docstring.splitlines():
        if not line.strip():
            close()
        elif line.startswith("    "):
            if sentence:
                close()
            formulas.append(line)
        else:
            if formulas:
                close()
            sentence.append(line.strip())
    close()
    return "\n".join(parts)
