"""Training prompts: combinations of templates and word lists, and the turns a target invents.

None of the kinds of `heldout.KINDS` has a template here; a turn that the target invents is
dropped when it looks like one of them. That is what makes acceptance on those kinds a test of
the draft and not of its memory.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from . import prompt_lists as lists
from .heldout import looks_held_out

__all__ = ["Prompt", "draw_prompt", "usable_turn"]

_TEMPLATES = (
    "What is {concept}?",
    "Explain {concept}.",
    "How does {concept} work?",
    "Why is {concept} important?",
    "Give me a short introduction to {concept}.",
    "What are the advantages and disadvantages of {concept}?",
    "Compare {concept} and {concept2}.",
    "What is the difference between {concept} and {concept2}?",
    "List five facts about {concept}.",
    "Write an essay about {concept}.",
    "Summarize the main ideas of {concept}.",
    "What are common misconceptions about {concept}?",
    "Who discovered or invented {concept}?",
    "How has {concept} changed over time?",
    "How does {concept} affect everyday life?",
    "Write a definition of {concept}.",
    "What questions remain open about {concept}?",
    "How would you teach {concept} to a class?",
    "Write the first paragraph of a textbook chapter on {concept}.",
    "Describe the role of {concept} in {subject}.",
    "What should a student of {subject} know about {concept}?",
    "Name three important people in {subject} and say what they did.",
    "What are the main branches of {subject}?",
    "Why do people study {subject}?",
    "What is the future of {subject}?",
    "How is {subject} related to {subject2}?",
    "How can I {task}?",
    "Give me tips to {task}.",
    "What do I need to {task}?",
    "I am trying to {task} but it does not work. What can I do?",
    "What mistakes should I avoid when I {task}?",
    "Explain how to {task} in five steps.",
    "Is it hard to {task}?",
    "Write a short story about {thing}.",
    "Write a story about {thing} and {thing2}.",
    "Describe {thing} in detail.",
    "Write a fairy tale in which {thing} meets {thing2}.",
    "Write the beginning of a novel about {thing}.",
    "Imagine {thing}. What happens next?",
    "Write a paragraph that describes {thing} at sunrise.",
    "Tell me about the history of {place}.",
    "What is {place} famous for?",
    "Describe the geography of {place}.",
    "What languages are spoken in {place}?",
    "Describe the culture of {place}.",
    "What are the main industries of {place}?",
    "Write a Python function that {program}.",
    "Write a JavaScript function that {program}.",
    "Explain how a program that {program} works.",
    "How do I write code that {program}?",
    "Write a C program that {program}.",
    "Rewrite this sentence in a formal way: I think {concept} is kind of a big deal.",
    'Is this sentence positive or negative: "I never liked {thing}, but now I do."',
    "Give me ten words related to {concept}.",
    "Give me five titles for an article about {concept}.",
    "What would happen without {concept}?",
    "Argue for and against {concept}.",
    "Do you think {concept} is overrated?",
    "Correct the grammar: {thing} have went to see {thing2} yesterday.",
    "What does it mean to {task}?",
)


def _split(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(";") if part.strip())


_WORDS = {
    "concept": _split(lists.CONCEPTS),
    "subject": _split(lists.SUBJECTS),
    "thing": _split(lists.THINGS),
    "task": _split(lists.TASKS),
    "place": _split(lists.PLACES),
    "program": _split(lists.PROGRAMS),
}
_OPENINGS = _split(lists.OPENINGS)


@dataclass(frozen=True)
class Prompt:
    """What one training text starts from.

    Attributes
    ----------
    kind: ``self`` (the target writes the user turn), ``template`` (chat) or ``plain`` (no chat).
    text: the user turn, or the opening to continue; empty for ``self``.
    temperature: of the answer; 0 is greedy.
    turn_temperature: of a user turn the target writes.
    """

    kind: str
    text: str
    temperature: float
    turn_temperature: float = 1.0


def _fill(template: str, rng: random.Random) -> str:
    values = {}
    for name, words in _WORDS.items():
        values[name], values[f"{name}2"] = rng.sample(words, 2)
    text = template.format(**values)
    return text[0].upper() + text[1:]


def draw_prompt(rng: random.Random, self_share: float = 0.5, plain_share: float = 0.12) -> Prompt:
    """Draw one prompt; the same generator state gives the same prompt.

    Half of the answers are greedy, because greedy decoding is what drafts mostly serve; the
    others are sampled at temperatures from 0.6 to 1.
    """
    kind = rng.random()
    temperature = 0.0 if rng.random() < 0.5 else rng.uniform(0.6, 1.0)
    if kind < self_share:
        return Prompt("self", "", temperature, rng.uniform(0.9, 1.2))
    if kind < self_share + plain_share:
        return Prompt("plain", _fill(rng.choice(_OPENINGS), rng), temperature)
    text = _fill(rng.choice(_TEMPLATES), rng) + rng.choice(lists.STYLES)
    return Prompt("template", text, temperature)


def usable_turn(text: str) -> bool:
    """Say whether a user turn written by the target is worth answering.

    Dropped: fewer than three words, mostly not letters, a loop (few distinct words), and
    anything that looks like a held-out kind.
    """
    words = re.findall(r"[a-zA-Z']+", text.lower())
    if len(words) < 3 or sum(map(len, words)) < 0.5 * len(text):
        return False
    if len(words) > 12 and len(set(words)) < 0.4 * len(words):
        return False
    return not looks_held_out(text)
