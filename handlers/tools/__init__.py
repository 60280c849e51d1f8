"""The tool server's part of this room: what agents may ask for, over MCP."""
