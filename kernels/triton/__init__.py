"""Kernels in Triton. Each module is imported when its kernel first computes."""
