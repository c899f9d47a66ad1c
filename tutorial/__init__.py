"""Examples to copy. Importable after an editable install."""
