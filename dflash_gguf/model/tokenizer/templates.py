"""Chat templates: copied as text, never run."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import FormatError
from dflash_gguf.model.checkpoint import read_json
from dflash_gguf.model.tokenizer.families import own_template_file
from dflash_gguf.model.tokenizer.files import check_text, read_text

if TYPE_CHECKING:
    from dflash_gguf.model.tokenizer.files import TokenizerFiles

_NAME_CHARS = frozenset(string.ascii_letters + string.digits)


def read_templates(target: TokenizerFiles) -> tuple[dict[str, str], tuple[str, ...]]:
    """Templates by name ("default" is the one without a name), and warnings.

    tokenizer_config.json's own template wins over chat_template.jinja (with additional_chat_templates/), that
    over chat_template.json. Without a tokenizer_config.json there is none.
    """
    if not target.settings:
        return {}, ()
    where = f"{target.settings_path}: chat_template"
    found = target.settings["chat_template"] if "chat_template" in target.settings else _from_files(target)
    jinja = target.folder / "chat_template.jinja"
    if own_template_file(target) and jinja.is_file():
        found = read_text(jinja)
    if found is None:
        return {}, ()
    if isinstance(found, str):
        return {"default": check_text(found, where)}, ()
    if isinstance(found, list):
        return _by_name(found, where), ()
    return {}, ("chat_template is neither a text nor a list of named ones: left out",)


def _from_files(target: TokenizerFiles) -> Any:
    jinja = target.folder / "chat_template.jinja"
    if jinja.is_file():
        more = sorted((target.folder / "additional_chat_templates").glob("*.jinja"))
        named = [{"name": path.stem, "template": read_text(path)} for path in more]
        return [{"name": "default", "template": read_text(jinja)}, *named] if named else read_text(jinja)
    plain = target.folder / "chat_template.json"
    return read_json(plain).get("chat_template") if plain.is_file() else None


def _by_name(entries: list[Any], where: str) -> dict[str, str]:
    templates: dict[str, str] = {}
    for entry in entries:
        name = entry.get("name", "") if isinstance(entry, dict) else None
        template = entry.get("template", "") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not isinstance(template, str | None):
            raise FormatError("an entry is no named template", where=where)
        plain = "".join(char if char in _NAME_CHARS else "_" for char in name)
        if plain and isinstance(template, str) and "template" in entry:
            templates[plain] = check_text(template, where)
    return templates
