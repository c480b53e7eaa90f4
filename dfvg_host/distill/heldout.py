"""The held-out evaluation: prompts of kinds that no training prompt may have.

Two walls keep them apart: training templates have none of these kinds and self-written turns
are filtered by keyword (`looks_held_out`); and every training text that shares a word 8-gram
with an evaluation prompt is dropped (`dedupe`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from dfvg_host.files import read_json
from dfvg_hw.errors import ModelError

__all__ = ["KINDS", "EvalPrompt", "demo_prompts", "eval_prompts", "looks_held_out"]

KINDS = {
    "recipe": (
        r"recipes?|cook\w*|bak(e|es|ed|ing)|ingredients?|dish(es)?|meals?|dinner|"
        r"lunch|breakfast|desserts?|cake|soup|boil\w*"
    ),
    "travel": (
        r"travel\w*|trips?|itinerar\w+|vacations?|touris\w+|sightseeing|holidays? in|"
        r"visit(ing)?|hotels?|backpack\w*|honeymoon|must-see|sights"
    ),
    "cover_letter": (
        r"cover letters?|job applications?|apply(ing)? for|resumes?|résumés?|"
        r"hiring manager|internship|application for|scholarship"
    ),
    "riddle": r"riddles?|puzzles?|brain ?teasers?|conundrums?|what am i|what (has|gets)",
    "regex": r"regex\w*|regular expressions?|pattern match\w*",
    "sql": (
        r"sql|mysql|postgres\w*|select (all|the|\*)|quer(y|ies)|joins? tables?|"
        r"tables?|rows?|(update|insert) statements?"
    ),
    "workout": (
        r"work ?outs?|exercises?|fitness|gym|push-?ups?|squats?|"
        r"training (plan|program)s?|yoga|stretch(es|ing)|marathon|warm-?ups?"
    ),
    "dialogue": (
        r"dialogues?|conversations? between|scripts?|screenplays?|role-?play\w*|"
        r"scenes? (where|between)|talk(s|ing)? to each other|interview\w*|"
        r"what they say"
    ),
    "product": (
        r"product descriptions?|advert\w*|slogans?|taglines?|marketing|sales pitch|"
        r"product page|commercials?|brand\w*|ads?|online (shop|store)|sales|buyers?"
    ),
    "toast": (
        r"toasts?|wedding|speech(es)?|birthday|graduation|eulog\w+|anniversary|"
        r"retirement|congratulat\w+|farewell|thank[- ]you|condolences?"
    ),
    "agenda": r"agendas?|meetings?|minutes of|workshops?|schedule for|conference program\w*",
    "review": r"reviews?|critiques?|star rating|movie|film|restaurant",
    "quiz": r"quiz\w*|trivia|multiple[- ]choice|flash ?cards?|true or false",
}
_ANY = re.compile(r"\b(" + "|".join(KINDS.values()) + r")\b", re.IGNORECASE)


@dataclass(frozen=True)
class EvalPrompt:
    """One evaluation prompt: its kind (a key of `KINDS`, or ``demo``) and the user turn."""

    kind: str
    text: str


def looks_held_out(text: str) -> bool:
    """Say whether ``text`` mentions a held-out kind (errs on the side of yes)."""
    return _ANY.search(text) is not None


def _read(name: str) -> list[EvalPrompt]:
    raw = (resources.files("dfvg_host") / "data" / name).read_text(encoding="utf-8")
    return read_prompts(raw, name)


def read_prompts(raw: str, name: str) -> list[EvalPrompt]:
    """Read JSON lines ``{"kind": ..., "prompt": ...}``.

    Raises
    ------
    ModelError
        Names the file and the line that cannot be used, or there is none.
    """
    prompts = []
    # Not splitlines(): JSON texts may hold U+2028 and its like.
    for number, line in enumerate(raw.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = read_json(line)
            prompts.append(EvalPrompt(str(item["kind"]), str(item["prompt"])))
        except (ValueError, KeyError, TypeError) as err:
            raise ModelError(
                f'{name} line {number} is not of the form {{"kind": ..., "prompt": ...}}'
            ) from err
    if not prompts:
        raise ModelError(f"{name} holds no prompts")
    return prompts


def eval_prompts() -> list[EvalPrompt]:
    """Return the shipped held-out prompts (13 kinds, 10 each)."""
    return _read("eval_prompts.jsonl")


def demo_prompts() -> list[EvalPrompt]:
    """Return the eight fixed demo prompts."""
    return _read("demo_prompts.jsonl")
