#!/usr/bin/env python3
"""Makes the manual page of a program from its --help, and from that of each of its commands.

usage: make_man.py PROGRAM OUTPUT

PROGRAM is a built program; OUTPUT the file for section 1, such as memctl.1. What --help does not say is not in the manual.
"""

import os
import re
import subprocess
import sys

ITEM = re.compile(r"^  (\S.*?)(?:\s{2,}(\S.*))?$")
HEADING = re.compile(r"^(\S.*):$")
COMMANDS = ("commands", "subcommands")


def help_of(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60).stdout


def escaped(text):
    """A text that troff prints as it stands."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


class Block:
    """A heading of --help and what stands below it: items (a name and what is said of it), or lines."""

    def __init__(self, heading):
        self.heading = heading
        self.items = []
        self.lines = []

    def add(self, line):
        item = ITEM.match(line)
        if item and not self.lines:
            self.items.append([item[1], item[2] or ""])
        elif line.startswith("   ") and self.items:
            self.items[-1][1] = (self.items[-1][1] + " " + line.strip()).strip()
        elif line.strip():
            self.lines.append(line.strip())


def parse(text):
    """(usage, blocks); the first block has no heading."""
    usage, blocks = "", [Block("")]
    for line in text.splitlines():
        heading = HEADING.match(line)
        if line.startswith("Usage:"):
            usage = line.removeprefix("Usage:").strip()
            blocks.append(Block(""))
        elif heading:
            blocks.append(Block(heading[1]))
        elif line and not line.startswith(" ") and blocks[-1].heading:
            blocks.append(Block(""))
            blocks[-1].add(line)
        else:
            blocks[-1].add(line)
    return usage, [block for block in blocks if block.items or block.lines]


def items_as_troff(items):
    out = []
    for name, text in items:
        out += [".TP", ".B " + escaped(name)]
        if text:
            out.append(escaped(text))
    return out


def examples_as_troff(items):
    out = [".nf"]
    for command, text in items:
        out += [".B " + escaped(command), *(["    " + escaped(text)] if text else [])]
    return out + [".fi"]


def commands_below(blocks):
    return [name.split()[0] for block in blocks if block.heading.lower() in COMMANDS for name, _ in block.items]


def command_as_troff(words):
    """One command of the program with its flags, and those below it."""
    usage, blocks = parse(help_of(*words, "--help"))
    name = " ".join([os.path.basename(words[0]), *words[1:]])
    arguments = re.sub(r"^.*\[OPTIONS\] ?", "", usage).upper().replace("SUBCOMMAND", "COMMAND")
    out = [".SS " + escaped((name + " " + arguments).strip())]
    for block in blocks:
        items = [item for item in block.items if not item[0].startswith("-h,")]
        if not block.heading:
            out += [escaped(line) for line in block.lines]
        elif items and block.heading.lower() not in COMMANDS:
            out += items_as_troff(items)
    for below in commands_below(blocks):
        out += command_as_troff([*words, below])
    return out


def page(program):
    name = os.path.basename(program)
    version = help_of(program, "--version").split()[1]
    usage, blocks = parse(help_of(program, "--help"))
    summary = blocks[0].lines[0].removeprefix(name).strip().rstrip(".")
    out = [f'.TH {name.upper()} 1 "" "Tidepool {version}" "Tidepool"', ".SH NAME", f"{name} \\- {escaped(summary)}", ".SH SYNOPSIS"]
    out += [f".B {name}", escaped(usage.partition(" ")[2].replace("[SUBCOMMAND]", "COMMAND ...") or "[COMMAND] [FLAGS]")]
    described = usage != ""  # each command has a --help of its own
    for number, block in enumerate(blocks):
        lines = block.lines[1:] if number == 0 else block.lines
        if block.heading.lower() in COMMANDS and described:
            out.append(".SH COMMANDS")
            for command in commands_below([block]):
                out += command_as_troff([program, command])
            continue
        if block.heading:
            title, _, remark = block.heading.partition(" (")
            out.append(".SH " + escaped(title.replace("`", "").upper()))
            out += [escaped(remark.removesuffix(")"))] if remark else []
        elif lines:
            out.append(".SH NOTES")
        out += examples_as_troff(block.items) if block.heading.lower() == "examples" else items_as_troff(block.items)
        if lines:
            out += [".PP", *(escaped(line) for line in lines)]
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    text = page(sys.argv[1])
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
