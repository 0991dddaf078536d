"""Whatever pages, helps, comments and errors mention exists: paths, links, targets, commands, options and variables.
The changelog is excluded, because it mentions removed things."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import click

from wiresum.agent.config import settings_of
from wiresum.cli.main import COMMANDS
from wiresum_lab import REPOSITORY, tracked_files
from wiresum_lab.benchmarks.__main__ import BENCHMARKS
from wiresum_lab.documentation import PAGES_ABOVE
from wiresum_lab.pages import blocks

LEFT_OUT = ("CHANGELOG.md", "LICENSE", "lab/tests/house/test_pages.py", "*_pb2*.py*", "*.json", "*.txtpb", "*.png")

FOREIGN_FILES = {
    "train.py", "v1model.p4", "test/main.py", "test/parallel/test_torch.py", "hw/rdc_setup.sh", "dpdk-devbind.py",
    "src/p4_rt/server/server.cpp", "p4studio/profiles/README.md",
    "mininet/__init__.py", "wiresum/__init__.py", *PAGES_ABOVE.values(),
}  # fmt: skip
"""Files of other projects, of the reader and of the site, and two that must not exist."""
FOREIGN_FOLDERS = {"pcaps", "log", "logs"}
"""Folders that programs write."""
FOREIGN_OPTIONS = {
    "--find-links", "--index-url", "--no-deps", "--in-memory", "--no-huge", "--no-pci", "--single-file-segments",
    "--vdev", "--skip-p4", "--skip-port-add", "--server-listen-local-only", "--with-devel-headers", "--clear-groups",
    "--reuid", "--regid", "--now", "--strict",
}  # fmt: skip
"""Options of pip, DPDK, bf_switchd, setpriv, systemctl and MkDocs."""
FOREIGN_VARIABLES = {"WIRESUM_NAME", "WIRESUM_SWITCH_PORT"}
"""A placeholder, and a variable that Kubernetes sets."""


@cache
def text_of(name: str) -> str:
    try:
        return (REPOSITORY / name).read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


FILES = [str(path.relative_to(REPOSITORY)) for path in tracked_files()]
PATHS = set(FILES) | {name[: end.start()] for name in FILES for end in re.finditer("/", name)}
ENDS = {path[start.end() :] for path in PATHS for start in re.finditer("^|/", path)}
"""Each path, also without its leading folders."""
TEXTS = [name for name in FILES if not any(fnmatch(name, left) for left in LEFT_OUT)]
PAGES = [name for name in TEXTS if name.endswith(".md")]
PRODUCT = [name for name in TEXTS if not re.search(r"(^|/)tests/|^bmv2_tests/", name)]
TOPS = "|".join(sorted({name.partition("/")[0] for name in FILES if "/" in name})).replace(".", r"\.")


class Mention(NamedTuple):
    where: str
    page: str
    text: str
    groups: tuple[str, ...]


def mentions(pattern: str, names: list[str]) -> Iterator[Mention]:
    for name in names:
        for match in re.finditer(pattern, text_of(name), re.MULTILINE):
            line = text_of(name).count("\n", 0, match.start()) + 1
            yield Mention(f"{name}:{line}", name, match[0].strip(), match.groups(default=""))


def nothing(dead: Iterable[str]) -> None:
    found = sorted(set(dead))
    assert not found, "\n" + "\n".join(found)


# ---- pages and paths


@cache
def anchors_of(page: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", prose), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_link_leads_to_an_existing_file_and_heading() -> None:
    dead = []
    for where, page, text, (target, anchor) in mentions(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)", PAGES):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
        if path not in PATHS or (anchor and anchor not in anchors_of(path)):
            dead.append(f"{where}: {text}")
    nothing(dead)


def test_every_mentioned_page_and_section_exists() -> None:
    page_and_section = (
        r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.md)(?:#([\w-]+))?"
        r'(?:\)?,\s+(?:(?:#|//|\*)\s+)?(?:"([^"\n]+)"|sections? (\d+)|([A-Z][a-z]+)\)))?'
    )
    dead = []
    for where, page, text, (target, anchor, title, number, word) in mentions(page_and_section, TEXTS):
        near = [posixpath.normpath(posixpath.join(folder, target)) for folder in (posixpath.dirname(page), "", "docs")]
        named = next((path for path in near if path in FILES), None)
        anchors = anchors_of(named) if named else set()
        section = anchor or re.sub(r"[^\w -]", "", title or word).lower().replace(" ", "-")
        if target not in FOREIGN_FILES and (
            not anchors
            or (section and section not in anchors)
            or (number and not any(re.match(rf"{number}\b", each) for each in anchors))
        ):
            dead.append(f"{where}: {text}")
    nothing(dead)


def test_every_mentioned_path_exists() -> None:
    """A path begins at the top; in a source it may begin at any folder."""
    from_the_top = rf"(?<![\w./~$}}-])(?:build/\w+/)?((?:{TOPS})/[\w./*-]*[\w*])"
    source = r"(?<![\w./~$<}*{-])((?:[\w-]+/)*[A-Za-z][\w-]*\.(?:[ch]pp|p4|py|lua|cmake|sbatch|sh))\b"
    sources = [name for name in PRODUCT if not name.endswith(".toml")]
    nothing(
        f"{where}: {path}"
        for pattern, names in ((from_the_top, TEXTS), (source, sources))
        for where, _, _, (path,) in mentions(pattern, names)
        if path not in ENDS | FOREIGN_FILES and not is_built(path)
        if not ("*" in path and any(fnmatch(each, path) for each in PATHS))
    )


def test_every_folder_mentioned_in_a_page_exists() -> None:
    nothing(
        f"{where}: {folder}"
        for where, page, _, (folder,) in mentions(r"`((?!build/)[a-z]\w*(?:/\w+)*)/`", PAGES)
        if folder not in FOREIGN_FOLDERS
        if folder not in (ENDS if posixpath.dirname(page) in ("", "docs") else PATHS)
        and f"{posixpath.dirname(page)}/{folder}" not in PATHS
    )


def is_built(path: str) -> bool:
    """Whether the CMakeLists.txt beside it mentions the program."""
    folder, _, program = path.rpartition("/")
    return program in text_of(f"{folder}/CMakeLists.txt") or "/CMakeFiles/" in path


def test_every_page_of_the_docs_has_a_reader() -> None:
    """In the site's navigation, once, and in README's table."""
    pages = sorted(name.removeprefix("docs/") for name in PAGES if name.startswith("docs/"))
    navigation = re.findall(r": ([\w-]+\.md)$", text_of("mkdocs.yml").partition("\nnav:\n")[2], re.MULTILINE)
    assert sorted(navigation) == sorted(pages + list(PAGES_ABOVE.values()))
    table = text_of("README.md").partition("\n## Documentation\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"\]\(docs/([\w-]+\.md)\)", table)) == pages


# ---- make, the command, programs


class Span(NamedTuple):
    """Text that can be typed: in backticks, in a code block, or on a line of a source."""

    where: str
    text: str
    is_code: bool


@cache
def spans() -> list[Span]:
    found = []
    for name in TEXTS:
        text = re.sub(r"\\\n[ #]*", " ", text_of(name))
        if name.endswith(".md"):
            for block in blocks(REPOSITORY / name):
                typed = re.sub(r"\\\n[ #]*", " ", block.text)
                lines = re.sub(r"^(mininet> \w+|\$) |\s#\s.*$", "", typed, flags=re.MULTILINE).splitlines()
                found += [Span(name, line, True) for line in lines if block.language not in ("python", "toml", "yaml")]
            text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        else:
            found += [Span(name, line, False) for line in text.splitlines() if re.search("make |wiresum|--", line)]
        in_backticks = re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", text)
        found += [Span(name, re.sub(r"\s+([*#/]+ +)?", " ", code), True) for code in in_backticks]
    return found


def options_in(text: str) -> list[str]:
    """The options of a command whose arguments begin `text`."""
    return re.findall(r"(?<![\w.-])(--[a-z][\w-]*)", re.split(r"[|>#;&`]|  |\\n|\$\(|, ", text)[0])


MAKEFILE = text_of("Makefile")
RULES = {
    target: (prerequisites.split(), recipe)
    for target, prerequisites, recipe in re.findall(r"^([\w-]+):([^#\n]*).*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)
}
MAKE_VARIABLES = set(re.findall(r"\$[({](\w+)", MAKEFILE + text_of(".ci/setup"))) | {"TORCH"}


def test_every_mentioned_make_target_and_variable_exists() -> None:
    dead = []
    for where, text, is_code in spans():
        for line in re.findall(r"(?:^|[^\w./-])make ([a-z].*)", text):
            first, *others = re.split(r"[|>#;&`'\",)]|  ", line)[0].split()
            if is_code:
                dead += [
                    f"{where}: no target {word}: {text}"
                    for word in (first, *others)
                    if word.islower() and word.partition("=")[0] not in RULES
                ]
            if is_code or first in RULES:
                variables = [word.partition("=")[0] for word in others if re.match("[A-Z_]+=", word)]
                dead += [f"{where}: no variable {word}: {text}" for word in variables if word not in MAKE_VARIABLES]
    nothing(dead)


def module_of(path: str) -> str:
    name = re.sub(
        r"^(lab|mininet|science|controller|soft_switch|p4src|host_agent/python|plugins/\w+)/(?=wiresum)", "", path
    )
    return re.sub(r"(/__main__|/__init__)?\.py$", "", name).replace("/", ".")


MODULES = {module_of(name): name for name in FILES if name.endswith(".py")}
MODULES |= {module_of(name): name for name in FILES if name.endswith("/__main__.py")}


@cache
def options_of(path: str) -> frozenset[str]:
    """Those that a program names in quotes, or a module that it imports from."""
    imported = re.findall(r"^from ([\w.]+) import", text_of(path), re.MULTILINE)
    texts = [text_of(name) for name in (path, *(MODULES[module] for module in imported if module in MODULES))]
    return frozenset(option for text in texts for option in re.findall(r'"(--[a-z][\w-]*)"', text)) | {"--help"}


PROGRAMS = [name for name in TEXTS if name.endswith(".py") and "__main__" in text_of(name)]


def programs_of(target: str) -> list[str]:
    prerequisites, recipe = RULES.get(target, ([], ""))
    own = [MODULES[module] for module in re.findall(r"-m ([\w.]+)", recipe) if module in MODULES]
    return own + [program for each in prerequisites if each in RULES for program in programs_of(each)]


def benchmarks(names: str) -> list[str]:
    """Those that `make bench NAMES=...` runs, which take its ARGS."""
    return [MODULES[f"wiresum_lab.benchmarks.{BENCHMARKS[name][0]}"] for name in names.split() if name in BENCHMARKS]


def test_programs_are_only_given_options_that_they_take() -> None:
    """With `make`, each program of the target must take them."""
    dead = []
    for where, text, _ in spans():
        given = [
            (benchmarks(names) or programs_of(target), arguments.lstrip("'"))
            for target, names, arguments in re.findall(
                r"\bmake ([\w-]+) (?:NAMES='?([\w ]+?)'? )?(?:[A-Z_]+=\S+ )*ARGS=('[^']*|\S+)", text
            )
        ]
        for name, arguments in re.findall(r"(?:-m |^|[ /])([\w./]+)(?<!\.)( .*)", text):
            path = MODULES.get(name) or name
            if path in PROGRAMS and (name.endswith(".py") or "-m" in text):
                given.append(([path], arguments))
        dead += [
            f"{where}: {program} takes no {option}: {text}"
            for programs, arguments in given
            for program in programs
            for option in options_in(arguments)
            if option not in options_of(program)
        ]
    nothing(dead)


@cache
def command(name: str) -> click.Command:
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(module), attribute)
    assert isinstance(found, click.Command)
    return found


def options_of_command(each: click.Command) -> set[str]:
    return {"--help"} | {option for parameter in each.params for option in parameter.opts}


def test_every_mentioned_command_and_its_options_exist() -> None:
    dead = []
    files = set()
    for where, text, is_code in spans():
        for name, arguments in re.findall(r"(?:^|[ /(\"])wiresum ([a-z]+)\b((?: .*)?)", text):
            if name not in COMMANDS:
                dead += [f"{where}: no command {name}: {text}"] * is_code
                continue
            files.add(where)
            each, words = command(name), arguments.split()
            while isinstance(each, click.Group) and words and words[0].strip("`),.") in each.commands:
                each = each.commands[words.pop(0).strip("`),.")]
            if is_code and isinstance(each, click.Group) and words and re.fullmatch("[a-z]+", words[0]):
                dead.append(f"{where}: no command {words[0]}: {text}")
            if isinstance(each, click.Group) and "run" in each.commands:  # the command without a subcommand
                each = each.commands["run"]
            known = options_of_command(each)
            if words and words[0].startswith("{"):  # any subcommand
                known = {option for below in commands_below(each) for option in options_of_command(below)}
            dead += [f"{where}: no option {option}: {text}" for option in options_in(arguments) if option not in known]
    nothing(dead)
    units = {name for name in TEXTS if name.endswith(".service") and name.startswith("controller/deploy/")}
    assert units | {"README.md", "controller/deploy/Containerfile", "controller/wiresum/cli/main.py"} <= files


def commands_below(each: click.Command) -> Iterator[click.Command]:
    yield each
    if isinstance(each, click.Group):
        for below in each.commands.values():
            yield from commands_below(below)


@cache
def all_options() -> set[str]:
    ours = {
        option for name in COMMANDS for each in commands_below(command(name)) for option in options_of_command(each)
    }
    return ours.union(FOREIGN_OPTIONS, *(options_of(program) for program in PROGRAMS))


def test_every_mentioned_option_is_one_of_some_program() -> None:
    """In backticks, and in texts of the product, except for those about another project's command."""
    dead = [
        f"{where}: {text}"
        for where, text, is_code in spans()
        if is_code and (match := re.match(r"--[a-z][\w-]*", text)) and match[0] not in all_options()
    ]
    for where, _, text, _ in mentions(
        r'"[^"\n]* --[^"\n]*"|"--[^"\n]* [^"\n]*"', [name for name in PRODUCT if name.endswith(".py")]
    ):
        if not re.search(r"\b(make|wiresum|torchrun|torchft_lighthouse|pip|apt-get) ", text):
            dead += [f"{where}: {text}" for option in options_in(text.strip('"')) if option not in all_options()]
    nothing(dead)


def test_nobody_is_sent_to_a_package_index_for_wiresum() -> None:
    """None has it: who registers the name there would own those who come."""
    from_an_index = r"""pip install (?:-\S+ |\S+=\S+ )*['"]?wiresum(?![\w./-]*\.whl)\b.*"""
    nothing(f"{where}: {text}" for where, _, text, _ in mentions(from_an_index, TEXTS))


# ---- variables


def test_every_mentioned_environment_variable_is_read() -> None:
    read = {setting.variable for setting in settings_of().values()} | FOREIGN_VARIABLES
    sources = [name for name in TEXTS if not name.endswith(".md")]
    for each in mentions(
        r"^(WIRESUM_\w+) = |(?:environ|settings)(?:\.get\(|\.pop\(|\[)\s*\"(WIRESUM_\w+)\"|"
        r"(?:getenv\(|Setting = )\"(WIRESUM_\w+)\"|\$ENV\{(WIRESUM_\w+)\}|\$\{?(WIRESUM_\w+)",
        sources,
    ):
        read |= set(each.groups)
    for name in sources:  # names in C and CMake, which their compilers check
        if re.search(r"\.([ch]|[ch]pp|map|in|txt)$", name):
            code = re.sub(r'//.*|/\*[^$]*?\*/|"(\\.|[^"\n])*"|^ *#(?!if|def|und|end|el).*', "", text_of(name))
            read |= set(re.findall(r"\bWIRESUM_\w+", code))
    nothing(
        f"{where}: {name}"
        for where, _, name, _ in mentions(r"\bWIRESUM_[A-Z0-9_]*[A-Z0-9]\b", PRODUCT)
        if name not in read
    )


def test_every_mentioned_module_has_the_mentioned_members() -> None:
    packages = "|".join({name.split(".")[1] for name in MODULES if name.startswith("wiresum.")})
    words = {"", *(word for name in PRODUCT if name not in PAGES for word in re.findall(r"\w+", text_of(name)))}
    nothing(
        f"{where}: {name}"
        for where, _, name, _ in mentions(
            rf"(?<![\w./@-])wiresum(_lab|_mininet|\.({packages}))\b(\.\w+)*\b(?!/)", TEXTS
        )
        if not any(
            name[:end] in MODULES and words.issuperset(name[end + 1 :].split(".")) for end in range(len(name) + 1)
        )
    )


def test_every_import_in_an_example_on_a_page_exists() -> None:
    python = [block.text for page in PAGES for block in blocks(REPOSITORY / page) if block.language == "python"]
    imports = {match for text in python for match in re.findall(r"^(?:from|import) ([\w.]+)", text, re.MULTILINE)}
    assert "wiresum.compress" in imports
    nothing(name for name in imports if not (name in MODULES or find_spec(name.partition(".")[0])))


def test_functions_that_pages_name_are_in_the_sources() -> None:
    """A page names a C++ function with its class or namespace: `Worker::store`."""
    sources = (text_of(name) for name in PRODUCT if name.endswith((".cpp", ".hpp")))
    words = {word for source in sources for word in re.findall(r"\w+", source)}
    nothing(
        f"{where}: {name}"
        for where, _, _, (name,) in mentions(r"`((?:\w+::)+\w+)`", PAGES)
        if not name.startswith("std::") and not words.issuperset(name.split("::"))
    )
