"""What to type for a part that this installation lacks. It is never the name alone: no package index has Wiresum."""

from __future__ import annotations

import shlex

from wiresum.join.release import installed_from

ANYWHERE = "path/to/wiresum"


def how_to_install(extra: str = "") -> str:
    """A command. If the checkout or wheel is no longer where pip had it from, a place-holder stands for it."""
    options, source = _source()
    what = f"{source or ANYWHERE}[{extra}]" if extra else source or ANYWHERE
    words = ["pip", "install", *([] if extra else ["--force-reinstall"]), *options, what]
    explained = "" if source else f", with the checkout or the wheel of Wiresum for {ANYWHERE}"
    return shlex.join(words) + explained


def _source() -> tuple[list[str], str]:
    """pip's options, and where it has Wiresum from: a folder or a wheel of this machine; "" if that is gone."""
    path, editable = installed_from()
    return ["--editable"] * editable, str(path or "")
