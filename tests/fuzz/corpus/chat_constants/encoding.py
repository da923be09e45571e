"""Docstring of the module."""
from typing import Any  # don't be fooled by 'quotes' here
OPEN = "<|open|>"
def declare(tools, dynamic=False):
    if dynamic:
        return (
            "More tools, listed"  # a comment between
            ' below:\n'
            f"{dump(tools, sep=(",", ":"))}!\n"
            "end"
        )
    return f"Tools {{all}} of them:\t{dump(tools)}!\nend"
def effort(level):
    return "Think " \
        f"about it, {level!r:>{width}} \x41\u00e9\101\
B" + r"raw \n text"
CHOICE = {"required": u'Call "one" tool', "none": '''Call
no tool''', "x": b"bytes", "y": rb'\d', "z": F"{a['k}']}tail", "n": "\N{BULLET}after"}
