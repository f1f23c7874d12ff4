"""All that can be read off an error."""

from __future__ import annotations

import pickle
import traceback


def everything(error: BaseException | None) -> str:
    """Return an error's words, its fields, its chain, its notes, and its pickle."""
    if error is None:
        return ""
    told = [str(error), repr(error), repr(error.args), repr(vars(error)), repr(pickle.dumps(error))]
    told += getattr(error, "__notes__", [])
    told += traceback.format_exception_only(error)
    return "\n".join(told) + everything(error.__cause__) + everything(error.__context__)
