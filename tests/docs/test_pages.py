"""What pages name exists: commands and their options, files, modules, targets of make."""

import re
import shlex

import pytest
import typer.main
from tools.blocks import blocks, commands

from laptime.cli import app
from tests.docs.pages import PAGES, ROOT, TUTORIAL, name

# What ends a command in a shell.
_END = {"|", "||", "&&", ">", ";", "&"}
LAPTIME = typer.main.get_command(app)
_FENCED = ("", "console", "text", "bash", "sh")


def _written(page):
    """Every command line of laptime's that a page shows, in a block or in a sentence."""
    for block in blocks(page):
        if block.language in _FENCED:
            for line in block.lines:
                yield from re.split(r"(?<=&&) ", line.removeprefix("$ "))
    outside = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    yield from re.findall(r"`(laptime [^`]+)`", outside)


def _words(line):
    words = shlex.split(line.replace("'", "\\'") if line.count("'") % 2 else line, comments=True)
    end = next((at for at, word in enumerate(words) if word in _END), len(words))
    return words[:end]


def _check(words):
    """That the verb is one of ours, and that it has the options."""
    command = LAPTIME
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands") or not words or words[0] in ("--help", "--version", "data"), words
    if hasattr(command, "commands"):
        return
    context = command.context_class(command, info_name=command.name)
    context.allow_interspersed_args = command.context_settings.get("allow_interspersed_args", True)
    try:
        command.make_parser(context).parse_args(args=list(words))
    except Exception as error:
        # A sentence may name an option without its value; what it must not do is name one that is not there.
        if type(error).__name__ == "NoSuchOption":
            raise AssertionError(f"{command.name} {' '.join(words)}: {error}") from None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_options_that_a_page_names_exist(page):
    for line in _written(page):
        words = _words(line) if re.match(r"laptime [a-z-]", line) else []
        if words:
            _check(words[1:])


def test_a_command_that_does_not_exist_is_noticed():
    with pytest.raises(AssertionError):
        _check(["trian", "mine.toml"])
    with pytest.raises(AssertionError):
        _check(["show", "runs/one", "--jsno"])
    _check(["run", "--out", "runs/one", "train.py", "--anything"])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_a_page_links_to_are_there(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), f"{name(page)}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_modules_and_targets_that_a_page_names_are_there(page):
    text = page.read_text("utf-8")
    for module in re.findall(r"python -m ([a-z_]+(?:\.[a-z_]+)*)", text):
        place = module.replace(".", "/")
        found = [ROOT / base / f"{place}{end}" for base in ("", "src") for end in (".py", "/__main__.py")]
        assert module in ("venv", "pip") or any(one.exists() for one in found), f"{name(page)}: {module}"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert target in targets, f"{name(page)}: make {target}"


def test_the_tutorial_can_be_worked_through_word_by_word():
    for block in blocks(TUTORIAL):
        assert block.language in ("python", "console"), f"line {block.line}: say python or console"
        if block.language == "python":
            compile(block.text, f"line {block.line} of the tutorial", "exec")
        else:
            assert list(commands(block))
