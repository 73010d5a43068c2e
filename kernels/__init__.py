"""GPU kernels, each beside a plain reference (none yet).

Must not know of anything but torch and triton.
"""
