"""The rules, one module per family of layers."""
