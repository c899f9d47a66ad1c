"""Chat gateways for training side by side: what a call costs through each, with one fake model behind all of them.

Run ``python -m benchmarks.gateways --help``.
"""
