"""Joins, slices, compares and searches text."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.node import Node
from katz_graph.node.knobs import Text


class StringConcatenate(Node, category="utils/string"):
    """Joins two texts with a delimiter between them."""

    string_a: Text = ""
    string_b: Text = ""
    delimiter: str = ""

    def run(self) -> str:
        return f"{self.string_a}{self.delimiter}{self.string_b}"


class StringSubstring(Node, category="utils/string"):
    """Extracts the characters from `start` up to `end`, counted from 0; negative numbers count from
    the end.
    """

    string: Text = ""
    start: int = 0
    end: int = 0

    def run(self) -> str:
        return self.string[self.start : self.end]


class StringLength(Node, category="utils/string", names=("length",)):
    """Counts the characters."""

    string: Text = ""

    def run(self) -> int:
        return len(self.string)


class CaseConverter(Node, category="utils/string"):
    """Changes the letter case of a text."""

    string: Text = ""
    mode: Literal["UPPERCASE", "lowercase", "Capitalize", "Title Case"] = "UPPERCASE"

    def run(self) -> str:
        change = {
            "UPPERCASE": str.upper,
            "lowercase": str.lower,
            "Capitalize": str.capitalize,
            "Title Case": str.title,
        }
        return change[self.mode](self.string)


class StringTrim(Node, category="utils/string"):
    """Removes white space at the ends of a text."""

    string: Text = ""
    mode: Literal["Both", "Left", "Right"] = "Both"

    def run(self) -> str:
        return {"Both": str.strip, "Left": str.lstrip, "Right": str.rstrip}[self.mode](self.string)


class StringReplace(Node, category="utils/string"):
    """Replaces each occurrence of a text."""

    string: Text = ""
    find: Text = ""
    replace: Text = ""

    def run(self) -> str:
        from katz_graph.nodes.text_search import check_size

        more = len(self.replace) - len(self.find)
        check_size(
            "the text after replacing 'find'",
            len(self.string) + self.string.count(self.find) * more,
        )
        return self.string.replace(self.find, self.replace)


class StringContains(Node, category="utils/string", names=("contains",)):
    """Tests whether one text contains another."""

    string: Text = ""
    substring: Text = ""
    case_sensitive: bool = True

    def run(self) -> bool:
        if self.case_sensitive:
            return self.substring in self.string
        return self.substring.lower() in self.string.lower()


class StringCompare(Node, category="utils/string"):
    """Tests whether one text begins with, ends with or equals another."""

    string_a: Text = ""
    string_b: Text = ""
    mode: Literal["Starts With", "Ends With", "Equal"] = "Starts With"
    case_sensitive: bool = True

    def run(self) -> bool:
        first, second = (
            (self.string_a, self.string_b)
            if self.case_sensitive
            else (self.string_a.lower(), self.string_b.lower())
        )
        if self.mode == "Equal":
            return first == second
        return first.startswith(second) if self.mode == "Starts With" else first.endswith(second)


class RegexMatch(Node, category="utils/string", names=("matches",)):
    """Tests whether a regular expression matches anywhere in a text."""

    string: Text = ""
    regex_pattern: Text = ""
    case_insensitive: bool = True
    multiline: bool = False
    dotall: bool = False

    def run(self) -> bool:
        from katz_graph.nodes.text_search import TimedSearch

        return TimedSearch(
            self.regex_pattern, self.case_insensitive, self.multiline, self.dotall
        ).found(self.string)


class RegexExtract(Node, category="utils/string"):
    """Extracts matches of a regular expression: the first match or all, whole or one group. Several
    matches become lines.
    """

    string: Text = ""
    regex_pattern: Text = ""
    mode: Literal["First Match", "All Matches", "First Group", "All Groups"] = "First Match"
    case_insensitive: bool = True
    multiline: bool = False
    dotall: bool = False
    group_index: Annotated[int, Field(ge=0, le=100)] = 1

    def run(self) -> str:
        from katz_graph.nodes.text_search import TimedSearch

        search = TimedSearch(self.regex_pattern, self.case_insensitive, self.multiline, self.dotall)
        group = (
            self.group_index if self.mode.endswith("Group") or self.mode.endswith("Groups") else 0
        )
        if group > search.groups:
            raise InputError(
                f"group_index: got {group}, but the expression has {search.groups} groups"
            )
        return "\n".join(
            search.all(self.string, group, count=0 if self.mode.startswith("All") else 1)
        )


class RegexReplace(
    Node,
    category="utils/string",
    optional=("case_insensitive", "multiline", "dotall", "count"),
):
    """Replaces each match of a regular expression (\\1 is its first group); `count` 0 means all."""

    string: Text = ""
    regex_pattern: Text = ""
    replace: Text = ""
    case_insensitive: bool = True
    multiline: bool = False
    dotall: bool = False
    count: Annotated[int, Field(ge=0, le=100)] = 0

    def run(self) -> str:
        from katz_graph.nodes.text_search import TimedSearch

        search = TimedSearch(self.regex_pattern, self.case_insensitive, self.multiline, self.dotall)
        return search.replaced(self.string, self.replace, self.count)


class JsonExtractString(Node, category="utils/string", title="Extract String from JSON"):
    """Extracts the value of a key of a JSON object, as text; empty if the key is missing."""

    json_string: Text = ""
    key: str = ""

    def run(self) -> str:
        try:
            found = json.loads(self.json_string)
        except (ValueError, RecursionError):
            return ""
        value = found.get(self.key) if isinstance(found, dict) else None
        return "" if value is None else str(value)
