"""A small MCP server that keeps notes, one file each, in a folder.

It speaks stdio or, with PORT in its environment, streamable HTTP on that port.
"""

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

folder = Path(sys.argv[1])
server = MCPServer("notes")


@server.tool()
def write_note(name: str, text: str) -> str:
    """Write a note."""
    (folder / name).write_text(text, encoding="utf-8")
    return "Written."


@server.tool()
def read_note(name: str) -> str:
    """Read a note."""
    return (folder / name).read_text(encoding="utf-8")


@server.tool()
def list_notes() -> str:
    """List the notes."""
    return "\n".join(sorted(path.name for path in folder.iterdir()))


if __name__ == "__main__":
    if "PORT" in os.environ:
        server.run("streamable-http", port=int(os.environ["PORT"]))
    else:
        server.run("stdio")
