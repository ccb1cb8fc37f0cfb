"""Servers that editors and agents start: `sizer lsp` and `sizer mcp`, on the functions of the library."""

from shapes import program

program.ALONE = False  # they answer in threads
