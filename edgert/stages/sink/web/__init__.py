"""The live page and the HTTP server of pages."""
