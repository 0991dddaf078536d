"""What to type to install a part that is missing. A name alone never does: no package index has Wiresum."""

from __future__ import annotations

import shlex

from wiresum.join.release import installed_from

ANYWHERE = "path/to/wiresum"


def how_to_install(extra: str = "") -> str:
    """A command for pip. A place-holder stands for the checkout or wheel if it is no longer where pip had it from."""
    options, source = _source()
    what = f"{source or ANYWHERE}[{extra}]" if extra else source or ANYWHERE
    words = ["pip", "install", *([] if extra else ["--force-reinstall"]), *options, what]
    explained = "" if source else f", with the checkout or the wheel of Wiresum for {ANYWHERE}"
    return shlex.join(words) + explained


def _source() -> tuple[list[str], str]:
    """pip's options, and the folder or wheel of this machine that pip had Wiresum from; "" if it is gone."""
    path, editable = installed_from()
    return ["--editable"] * editable, str(path or "")
