"""HTML reports: pages, tables and charts, and a quantization's result as records in and one file out."""
