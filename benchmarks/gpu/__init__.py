"""The embedded sampler and trainer on one GPU: built, checked and timed by ``python -m benchmarks.gpu``."""
