"""GPU kernels in Triton, each beside a plain reference, and the function that chooses.

Must not know of anything but torch and triton.
"""
