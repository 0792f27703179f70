"""How errors are worded: one line without a full stop, and what to do comes first."""

import ast
from pathlib import Path

import pytest

import girih

RAISED = ("GirihError", "UnavailableError")
SOURCES = sorted(Path(girih.__file__).parent.rglob("*.py"))


def text_of(node):
    """A text as it is in the source, `{}` for what is put in; None if it is no text."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = node.values
        return "".join("{}" if isinstance(it, ast.FormattedValue) else it.value for it in parts)
    if isinstance(node, ast.BinOp):
        return text_of(node.left)
    return None


def raised(source):
    """Every text that a file raises, with its line."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        name = node.exc.func
        if isinstance(name, ast.Name) and name.id in RAISED and node.exc.args:
            text = text_of(node.exc.args[0])
            if text is not None:
                has_repr = any(
                    isinstance(it, ast.FormattedValue) and it.conversion == ord("r")
                    for it in ast.walk(node.exc)
                )
                yield node.lineno, text, has_repr


def fault(text, has_repr=False):
    """What is wrong with the form of an error, if anything is."""
    first = text.strip()[:1]
    if not first:
        return "it is empty"
    if first.isupper() and not text.startswith(("CUDA", "GIRIH", "Girih")):
        return "it begins like a sentence"
    if "\n" in text.rstrip("\n"):
        return "it has several lines"
    if text.endswith((".", "!", " ")):
        return "it ends in a sign"
    return "it shows a value as the program has it" if has_repr else None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_error_is_one_line_without_a_full_stop(path):
    for line, text, has_repr in raised(path.read_text()):
        assert fault(text, has_repr) is None, f"{path.name}:{line}: {text}"


def test_errors_are_found_at_all():
    texts = [text for path in SOURCES for _, text, _ in raised(path.read_text())]
    assert len(texts) > 25
    assert any(text.startswith("call girih.enable()") for text in texts)


@pytest.mark.parametrize("bad", ["", "Something failed", "it failed.", "one\ntwo"])
def test_a_bad_form_is_found(bad):
    assert fault(bad) is not None
