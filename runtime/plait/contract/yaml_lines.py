"""Where in a YAML text a field stands, and which keys stand twice (YAML keeps the last, silently)."""

from __future__ import annotations

import yaml


class YamlLines:
    """Line numbers (from 1) of a YAML document's fields, by path of keys."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, ...], int] = {}
        self.duplicates: list[tuple[str, int]] = []
        """Paths (joined by dots) of keys that were written again, with the line of the repetition."""
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            self._walk(root, ())

    def line(self, path: tuple[str, ...]) -> int | None:
        """The line of the field at `path`, or None when it is not in the text."""
        return self._lines.get(path)

    def _walk(self, node: yaml.Node, path: tuple[str, ...]) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            here = (*path, str(key.value))
            line = key.start_mark.line + 1
            if here in self._lines:
                self.duplicates.append((".".join(here), line))
                # What stood under the first one does not hold, so it is not repeated by the second.
                self._lines = {p: n for p, n in self._lines.items() if p[: len(here)] != here}
            self._lines[here] = line
            self._walk(value, here)
