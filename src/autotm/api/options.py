"""Options given as keywords, checked like those of the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autotm.model.files import BadInputError, explain

Options = TypeVar("Options", bound=BaseModel)


def options_of(kind: type[Options], given: Mapping[str, Any], what: str) -> Options:
    """The options of that kind, with what is given.

    Raises:
        BadInputError: no such option, or not such a value; `what` names them.
    """
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        raise BadInputError(explain(what, error, kind)) from None
