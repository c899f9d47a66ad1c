"""``ajet-swarm overwatch``: what a swarm server does, in a terminal that stays open, or once as plain text.

Four parts, each knowing only those before it: ``drawing`` (text, bars, curves), ``feed`` (asks the server and survives
its absence), ``frame`` (an answer → lines that fit a terminal; no terminal needed), ``app`` (the terminal, with
Textual). Reads the public HTTP API only. Everything but ``app`` works without Textual.
"""
