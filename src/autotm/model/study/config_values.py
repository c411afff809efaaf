"""Values that several parts of the study's config take, and how strictly all of it is read."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from autotm.model.files import BadInputError
from autotm.model.step import Limit

ALL_FAST = "0:1"
ALL_SLOW = "1:0"


def _quoted_limit(value: object) -> object:
    """Refuse numbers: YAML reads an unquoted 8:1 as the base-60 number 481."""
    if not isinstance(value, str):
        raise ValueError('it should be quoted text: a ratio slow:fast such as "8:1", or bytes such as "4500MB"')  # noqa: TRY004
    try:
        Limit.parse(value)
    except BadInputError as error:
        raise ValueError(str(error).removeprefix("limit: ")) from None
    return value


def _distinct(values: list[str]) -> list[str]:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} appears twice")
    return values


def _has_all_fast(values: list[str]) -> list[str]:
    if ALL_FAST not in values:
        raise ValueError(f'it should contain "{ALL_FAST}", the all-fast run that slow-downs are divided by')
    return values


LimitText = Annotated[str, BeforeValidator(_quoted_limit)]
AnyLimits = Annotated[list[LimitText], Field(min_length=1), AfterValidator(_distinct)]
Limits = Annotated[list[LimitText], Field(min_length=2), AfterValidator(_distinct), AfterValidator(_has_all_fast)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]


class Strict(BaseModel):
    """Unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
