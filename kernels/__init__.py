"""Contains GPU kernels in Triton, each next to a plain torch reference, and the function that
chooses between them.

Must not know anything but torch and triton.
"""
