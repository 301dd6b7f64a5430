#!/usr/bin/env python3
"""Turns the recording of a terminal into a picture.

Usage: terminal_picture.py RECORDING COMMAND PICTURE.svg

RECORDING is what `script -qec COMMAND RECORDING` wrote in a terminal of 80 columns. The picture shows COMMAND and the
lines that remain on the screen at the end, in their colors. Needs Python's standard library only.
"""

import re
import sys
from html import escape
from pathlib import Path

COLUMNS = 80
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 18, 16
COLORS = {"31": "#f47067", "32": "#8ddb8c", "33": "#daaa3f", "36": "#76d9e6"}
PLAIN, BACKGROUND, PROMPT = "#d1d7e0", "#151b23", "#8ddb8c"
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def screen(recording):
    """The lines that remain, each a list of (character, color)."""
    lines, row, column, color, at = [[]], 0, 0, PLAIN, 0
    while at < len(recording):
        match = SEQUENCE.match(recording, at)
        if match:
            argument, kind = match.groups()
            count = int(argument) if argument.isdigit() else 1
            if kind == "A":
                row = max(row - count, 0)
            elif kind == "B":
                row += count
            elif kind == "K":
                lines[row:row + 1] = [[]]
                column = 0
            elif kind == "m":
                color = next((COLORS[code] for code in argument.split(";") if code in COLORS), PLAIN)
            at = match.end()
        else:
            character = recording[at]
            at += 1
            if character == "\r":
                column = 0
            elif character == "\n":
                row, column = row + 1, 0
            elif character >= " ":
                if column == COLUMNS:
                    row, column = row + 1, 0
                while len(lines) <= row:
                    lines.append([])
                line = lines[row]
                line.extend([(" ", PLAIN)] * (column + 1 - len(line)))
                line[column] = (character, color)
                column += 1
        while len(lines) <= row:
            lines.append([])
    texts = [trimmed(line) for line in lines]
    return [line for line in texts if line]


def trimmed(line):
    while line and line[-1][0] == " ":
        line = line[:-1]
    return line


def spans(line):
    """Runs of one color, as SVG."""
    out, start = [], 0
    for at in range(1, len(line) + 1):
        if at == len(line) or line[at][1] != line[start][1]:
            text = escape("".join(character for character, _ in line[start:at]))
            out.append(f'<tspan x="{MARGIN + start * CELL_WIDTH:.1f}" fill="{line[start][1]}">{text}</tspan>')
            start = at
    return "".join(out)


def picture(lines):
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, len(lines) * CELL_HEIGHT + 2 * MARGIN
    rows = [
        f'<text y="{MARGIN + CELL_HEIGHT * (row + 0.75):.1f}">{spans(line)}</text>' for row, line in enumerate(lines)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" xml:space="preserve" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">\n'
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def main():
    recording, command, out = sys.argv[1:]
    with open(recording, newline="", errors="replace") as file:
        text = file.read()
    # The recorder's own first and last line.
    text = re.sub(r"^Script started on .*\r?\n|\r?\n?Script done on .*\r?\n", "", text)
    lines = [[(character, PROMPT if at < 2 else PLAIN) for at, character in enumerate(f"$ {command}")]]
    Path(out).write_text(picture(lines + screen(text)))


if __name__ == "__main__":
    main()
