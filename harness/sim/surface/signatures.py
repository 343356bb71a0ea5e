"""Whether a call fits what the real wheel's schemas take. Pure: the recorded operator goes in, the reason comes out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

_KINDS = {"positional_or_keyword": inspect.Parameter.POSITIONAL_OR_KEYWORD, "keyword_only": inspect.Parameter.KEYWORD_ONLY}


def signatures(operator: Mapping[str, Any]) -> list[inspect.Signature]:
    """Of every overload of an operator as `describe` recorded it."""
    return [
        inspect.Signature(
            [inspect.Parameter(p["name"], _KINDS[p["kind"]], default=p.get("default", inspect.Parameter.empty)) for p in overload]
        )
        for overload in operator["overloads"].values()
    ]


def why_refused(operator: Mapping[str, Any], positional: int, keywords: Iterable[str]) -> str:
    """ "" where an overload takes so many positional arguments and these keywords, else what each says."""
    arguments, named, said = [None] * positional, dict.fromkeys(keywords), []
    for signature in signatures(operator):
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            said.append(str(error))
        else:
            return ""
    return "; ".join(dict.fromkeys(said))
