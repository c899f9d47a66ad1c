"""What of the documentation is generated: references from the code, pictures from a script. Run ``python -m docs.generate``.

Each module has ``files() -> {path below docs/: text}``; a test compares what they give with what is committed.
"""
