"""The real servers, for the tests of this folder."""

from upstream.plugin import llama_server, llama_server_with_tools

__all__ = ["llama_server", "llama_server_with_tools"]
