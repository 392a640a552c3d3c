"""Settings as TOML: Python reads it, but does not write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_value(value: Any) -> str:
    """A value of a setting as it stands in `run.toml`."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_value(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return repr(value)
    # what JSON escapes in a string, TOML reads; DEL alone must be escaped in TOML only
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
