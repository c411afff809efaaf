"""Reading device files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from autotm.memory.device.device_file import DeviceFile
from autotm.memory.device.published import PublishedDevice
from autotm.model.files import BadInputError, explain, unknown_name


@dataclass(frozen=True, slots=True)
class Device:
    """A device file that was read, with its name; of published numbers, the constants derived from them."""

    name: str
    constants: DeviceFile


def load_device(devices_dir: Path, name: str) -> Device:
    """Read `devices_dir`/`name`.yaml.

    Raises:
        BadInputError: no such device, an unknown key, a bad or missing value; names file, key and value.
    """
    contents = _contents(devices_dir, name)
    if isinstance(contents, DeviceFile):
        return Device(name, contents)
    fitted = _contents(devices_dir, contents.hidden_as)
    if not isinstance(fitted, DeviceFile):
        path = devices_dir / f"{name}.yaml"
        raise BadInputError(f"{path}: hidden_as: {contents.hidden_as} was not fitted; name a device that has `kernels`")
    return Device(name, contents.constants(fitted))


def _contents(devices_dir: Path, name: str) -> DeviceFile | PublishedDevice:
    path = devices_dir / f"{name}.yaml"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = [file.stem for file in devices_dir.glob("*.yaml")]
        raise BadInputError(f"{path}: {unknown_name('device', name, known)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: not valid YAML: {error}") from None
    is_published = isinstance(document, dict) and "hidden_as" in document
    model = PublishedDevice if is_published else DeviceFile
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise BadInputError(explain(path, error, model)) from None
