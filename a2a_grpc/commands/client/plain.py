"""Text that somebody else wrote, made safe to show.

What an agent or a server says must not move the cursor, change colours, or turn the reading
direction: such characters are shown, not obeyed.
"""

from __future__ import annotations

_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # the pictures of control characters
    0x7F: "\u2421",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:04x}" for code in _BIDI},
    0x2028: "\n",
    0x2029: "\n",
}
_LINES = {**_SHOWN, ord("\n"): "\n", ord("\t"): "\t"}
_ONE_LINE = {**_SHOWN, **dict.fromkeys((0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x85, 0x2028, 0x2029), " ")}


def plain(text: str) -> str:
    """The text with its lines and tabs, and with every other control character made visible."""
    return text.replace("\r\n", "\n").translate(_LINES)


def one_line(text: str, most: int | None = None) -> str:
    """The text on one line, cut to `most` characters; control characters are made visible."""
    line = " ".join(text.translate(_ONE_LINE).split())
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"
