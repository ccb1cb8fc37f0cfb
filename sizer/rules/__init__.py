"""The rule catalogue: a file a topic, so that a check enters few of them; a rule is a function declared by ``rule``."""

from shapes.errors import InputError
from shapes.program import added
from shapes.toml_table import nearest

from . import dimensions, heads, splits, tiles, tokens
from .base import DECLARED, Rule

TOPICS = (dimensions, heads, tokens, splits, tiles)
added("sizer.rules")  # their modules declare rules as these do

RULES: tuple[Rule, ...] = tuple(DECLARED[code] for code in sorted(DECLARED))


#: Codes of rules that are part of another rule now.
MERGED = {"SZ128": "SZ110", "SZ130": "SZ112"}


def find_rule(
    name: str, expected: str = "a rule's code or slug", *, key: str = "rule", where: str | None = None
) -> Rule:
    """The rule with this code or slug; an unknown one is an InputError naming the nearest."""
    name = MERGED.get(name.upper(), name)
    for rule in RULES:
        if name.upper() == rule.code or name.lower() == rule.slug:
            return rule
    near = nearest(name, rule_names(), 3, 0.5)
    named = f" (nearest: {', '.join(near)})" if near else ""
    raise InputError(f"expected {expected}{named}; `sizer rules` lists them", key, name, where)


def rule_names() -> list[str]:
    """Codes, then slugs."""
    return [rule.code for rule in RULES] + [rule.slug for rule in RULES]
