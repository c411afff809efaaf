"""The fields of a class that stands for a file: their names, types, units, defaults and meanings, in words."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_json

_BY_NAME = {
    r".*flop_per_s": "flop/s", r".*bytes_per_s": "bytes/s", r".*ns_per_byte": "ns/byte", r".*_per_gb": "price/GB",
    r".*_us": "µs", r".*_ns": "ns", r".*_s|.*seconds|(creation|optimization)_times": "s", r"minutes": "min",
    r"rest": "price", r".*_us_per_mb": "µs/MB", r"Comparison\.(fields|differing)": "as named",
    r".*_bytes|bytes_.*|.*_size|tensor_size_map|offsets?": "bytes", r".*_mb": "MB", r".*_cm": "cm", r".*_pt": "pt",
    r".*_percent": "%", r"flops": "flop", r"gap|(repeated_)?share|spread|precision": "share",
    r"measuring|.*_tolerance|of_.*": "share",
    r".*fraction|.*_error|.*price|.*price_ratio|.*slowdown|share_of_peak|speedup|load_1min": "ratio",
    r"losses|.*_loss(es)?|loss_margin": "as the loss",
    r"emulation_stretch|ratio_achieved|Contention\.to_.*|FusionTimes\.(ratio|noise|difference)": "ratio",
    r"SearchStep\.temperature|Execution\.ratio|.*\.best_seen|Rewards\.r2.*|Setting\.(decay|strength)": "ratio",
    r"FusionProblem\.features|Policy\.(means|scales)|Branch\.threshold|Layer\..*": "as the features",
    r"Rewards\.weights|Promise\.benefit": "as the target", r"FusionSelection\.misses": "what there is to gain",
    r"PlacementCurve\.improved|PlacementSearch\.(all_slow|first_touch)": "ratio",
    r"Branch\.shares|Policy\.(surely|labels|accuracy.*|importance)": "share",
    r"Initial\.scale": "as the values",
}  # fmt: skip
"""Units by what a name says, or with its class where that says nothing; the first that fits the whole name holds."""
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null", Any: "any"}

_PLURALS = {"text": "texts", "whole number": "whole numbers", "number": "numbers"}


class MeaninglessError(Exception):
    """A field that nobody could understand; the text says which, and what it lacks."""


@dataclass(frozen=True)
class Field:
    """One field of a file.

    Attributes:
        name: as the file has it.
        kind: what it holds: a type, as Python has it.
        unit: of its numbers; empty where they count or number something.
        default: what it is where the file lacks it, as JSON; None where the file must have it.
        meaning: in words.
        range: of its numbers, e.g. `≥ 1`; empty where all are allowed.
    """

    name: str
    kind: Any
    unit: str
    default: str | None
    meaning: str
    range: str = ""


def fields_of(kind: type[Any]) -> list[Field]:
    """Return the fields of a dataclass, of a model of pydantic or of a typed dictionary, in order.

    Raises:
        MeaninglessError: a field has no meaning, or a number with a fraction no unit.
    """
    if issubclass(kind, BaseModel):
        found = [_of_model(name, field, get_type_hints(kind)[name]) for name, field in kind.model_fields.items()]
    else:
        meanings, hints, defaults = meanings_of(kind), get_type_hints(kind), _defaults(kind)
        if unknown := sorted(set(meanings) - set(defaults)):
            raise MeaninglessError(f"{kind.__name__}: its docstring has meanings for what is no field of it: {unknown}")
        found = [
            Field(name, hints[name], _unit(kind, name, hints[name]), default, meanings.get(name, ""))
            for name, default in defaults.items()
        ]
    for field in found:
        if not field.meaning:
            raise MeaninglessError(f"{kind.__name__}.{field.name}: has no meaning in the docstring")
        if float in set(_leaves(field.kind)) and not field.unit:
            raise MeaninglessError(f"{kind.__name__}.{field.name}: is a number without a unit")
    return found


def meanings_of(kind: type[Any]) -> dict[str, str]:
    """Meaning by name, from the section `Attributes:` of a docstring; one line may describe several."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\S)", f"\n{section}".rstrip()):
        names, colon, text = entry.strip().partition(": ")
        if colon:
            meaning = re.sub(r"\bNone\b", "null", " ".join(text.split()).removesuffix("."))
            found |= dict.fromkeys(names.split(", "), meaning)
    return found


def paragraphs(kind: type[Any]) -> str:
    """Return what a docstring says before its sections."""
    return re.split(r"\n\n(?=(?:Attributes|Raises):\n)", inspect.cleandoc(kind.__doc__ or ""))[0]


def unit_of(name: str, kind: Any = float) -> str:
    """Return the unit that a name tells of numbers; empty where it tells none, or what it names has no numbers."""
    if not {int, float} & set(_leaves(kind)):
        return ""
    return next((unit for pattern, unit in _BY_NAME.items() if re.fullmatch(pattern, name)), "")


def _unit(kind: type[Any], name: str, holds: Any) -> str:
    return unit_of(name, holds) or unit_of(f"{kind.__name__}.{name}", holds)


def inner_types(kind: Any) -> Iterator[type[Any]]:
    """Yield the classes with fields of their own that values of a type are made of."""
    for leaf in _leaves(kind):
        has_fields = inspect.isclass(leaf) and (dataclasses.is_dataclass(leaf) or issubclass(leaf, BaseModel))
        if has_fields and not _is_text(leaf):
            yield leaf


def _is_text(kind: Any) -> bool:
    """Whether files hold values of a class as text: it reads and writes them by itself, as `Limit` does."""
    return "__get_pydantic_core_schema__" in vars(kind) and not issubclass(kind, BaseModel)


def in_words(kind: Any) -> str:
    """Return a type as a reader of the file sees it, with links to the classes on the same page."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None:
        return _word(kind)
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in arguments)
    words = [in_words(each) for each in (arguments[:1] if origin is Annotated else arguments) if each is not Ellipsis]
    if origin in {Union, types.UnionType}:
        return " or ".join(dict.fromkeys(words))
    if origin is tuple and len(words) == len(arguments):
        return f"[{', '.join(words)}]"
    if origin in {tuple, list}:
        return f"list of {_PLURALS.get(words[0], words[0])}"
    return f"{words[1]} by name" if origin in {dict, Mapping} else words[0]


def _word(kind: Any) -> str:
    if inspect.isclass(kind) and issubclass(kind, StrEnum):
        return " or ".join(f"`{each.value}`" for each in kind)
    is_text = kind is Path or (inspect.isclass(kind) and _is_text(kind))
    return _WORDS.get(str if is_text else kind) or f"[{kind.__name__}](#{kind.__name__.lower()})"


def _leaves(kind: Any) -> Iterator[Any]:
    """Yield the types at the end of a type: those in lists, in mappings, and of alternatives."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return
    if not arguments:
        yield kind
    for each in arguments[:1] if origin is Annotated else arguments:
        yield from _leaves(each)


def _defaults(kind: type[Any]) -> dict[str, str | None]:
    """Default by name, as of `Field`."""
    if is_typeddict(kind):
        return {name: None if name in kind.__required_keys__ else "absent" for name in kind.__annotations__}
    return {field.name: _default(field.default, field.default_factory) for field in dataclasses.fields(kind)}


def _of_model(name: str, field: Any, hint: Any) -> Field:
    meaning = field.description or next((paragraphs(inner).split("\n")[0] for inner in inner_types(hint)), "")
    default = _default(field.default, field.default_factory)
    return Field(name, hint, unit_of(name, hint), default, meaning, _range(field.metadata))


def _range(constraints: list[Any]) -> str:
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    bounds = [(sign, getattr(each, name)) for each in constraints for name, sign in signs if hasattr(each, name)]
    return " and ".join(f"{sign} {bound}" for sign, bound in bounds)


def _default(value: Any, factory: Any) -> str | None:
    """As JSON; what has fields of its own takes their defaults."""
    if callable(factory):
        value = factory()
    if value is PydanticUndefined or value is dataclasses.MISSING:
        return None
    is_group = isinstance(value, BaseModel) or dataclasses.is_dataclass(value)
    return "{}" if is_group and not _is_text(type(value)) else to_json(value).decode()
